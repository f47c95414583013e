"""From logits to the next token, with mlx-lm's samplers and a generator of the request's own."""

import secrets
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from backburner.engine.request import SamplingParams

Sampler = Callable[[mx.array], int]


def sampler_for(params: SamplingParams, vocab_size: int) -> Sampler:
    """A function from one row of logits [vocab] to a token id. Greedy takes the first of equal maxima.

    One request runs at a time, so seeding MLX's generator when it starts makes its draws its own.
    """
    if params.temperature == 0:
        return lambda logits: token_of(mx.argmax(logits))
    mx.random.seed(params.seed if params.seed is not None else secrets.randbits(63))
    choose = make_sampler(
        temp=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        # Of as many as there are, or more, all stay: mlx-lm would refuse it instead.
        top_k=params.top_k if params.top_k < vocab_size else 0,
    )

    def sample(logits: mx.array) -> int:
        row = logits[None].astype(mx.float32)
        return token_of(choose(row - mx.logsumexp(row, keepdims=True)))

    return sample


def token_of(choice: mx.array) -> int:
    """The token id in a one-element array."""
    token = choice.item()
    assert isinstance(token, int)
    return token
