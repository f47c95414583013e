"""From logits to the next token, in a fixed order, with a generator of the request's own.

1. The grammar's mask.
2. logit_bias, then repetition_penalty (prompt and answer), presence_penalty and frequency_penalty (answer only).
3. temperature, then top_k, top_p of what top_k kept, min_p of the most probable token's share.
4. A draw; at temperature 0 the first of the largest values after step 2.

Log probabilities that are reported are the model's own: of the logits as they came, whatever happens to them here.
"""

import secrets
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from backburner.engine.request import GenerationRequest, SamplingParams

# Logits divided by less overflow in fp32. At this temperature a draw differs from greedy between equal maxima only.
LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Score:
    """A token's log probability, and the most probable ones at its place, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The next token; its score if the request asks for it."""

    token: int
    score: Score | None = None


class Guide(Protocol):
    """What keeps an answer to a grammar (`engine.grammar`)."""

    def mask(self, logits: mx.array) -> mx.array:
        """logits [vocab] with -inf for what may not come next."""
        ...

    def push(self, token: int) -> None: ...


class Sampler:
    """Chooses the tokens of one answer, one after the other. It shares nothing with other requests."""

    def __init__(self, request: GenerationRequest, vocab_size: int, guide: Guide | None = None) -> None:
        self._params = params = request.sampling
        self._logprobs = request.logprobs
        self._guide = guide
        self._bias: mx.array | None = None
        if params.logit_bias:
            bias = np.zeros(vocab_size, np.float32)
            for token, value in params.logit_bias:
                if not 0 <= token < vocab_size:
                    raise ValueError(f"logit_bias: token {token} is outside [0, {vocab_size})")
                bias[token] += value
            self._bias = mx.array(bias)
        self._seen = np.zeros(vocab_size, bool)
        if params.repetition_penalty != 1:
            self._seen[list(request.prompt)] = True
        self._counts = np.zeros(vocab_size, np.float32)  # of the answer's tokens
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        self._key = mx.random.key(seed % 2**64)

    def __call__(self, logits: mx.array) -> Chosen:
        """The choice from one row of logits [vocab]; it counts as made."""
        row = self._adjusted(logits)
        token = token_of(mx.argmax(row)) if self._params.temperature == 0 else self._draw(row)
        score = None
        if self._logprobs is not None:
            score = scores(logits[None], [token], self._logprobs)[0]
        self._seen[token] = True
        self._counts[token] += 1
        if self._guide is not None:
            self._guide.push(token)
        return Chosen(token, score)

    def _adjusted(self, logits: mx.array) -> mx.array:
        params = self._params
        row = logits if self._guide is None else self._guide.mask(logits)
        if self._bias is not None:
            row = row.astype(mx.float32) + self._bias
        if (penalty := params.repetition_penalty) != 1:
            row = row.astype(mx.float32)
            row = mx.where(mx.array(self._seen), mx.where(row > 0, row / penalty, row * penalty), row)
        if params.presence_penalty or params.frequency_penalty:
            penalties = params.presence_penalty * (self._counts > 0) + params.frequency_penalty * self._counts
            row = row.astype(mx.float32) - mx.array(penalties.astype(np.float32))
        return row

    def _draw(self, row: mx.array) -> int:
        # A key for each token: what other requests draw, or whether this one was resumed, changes nothing.
        self._key, key = mx.random.split(self._key)
        tokens, logprobs = candidates(row, self._params)
        choice = token_of(mx.random.categorical(logprobs, key=key))
        return choice if tokens is None else token_of(tokens[choice])


def candidates(row: mx.array, params: SamplingParams) -> tuple[mx.array | None, mx.array]:
    """What may be drawn from a row of logits [vocab]: token ids (None: all, in order) and their log probabilities,
    up to a constant; -inf: it may not."""
    row = row.astype(mx.float32)
    row = (row - mx.max(row)) / max(params.temperature, LOWEST_TEMPERATURE)
    tokens = None
    # Of as many as there are, or more, all stay.
    if 0 < params.top_k < row.size:
        kept = mx.isfinite(apply_top_k(row[None], params.top_k)[0])
        # Only these from here on: sorting a large vocabulary for top_p takes longer than a small model's token.
        tokens = mx.array(np.flatnonzero(np.array(kept)).astype(np.int32))
        row = row[tokens]
    logprobs = (row - mx.logsumexp(row))[None]
    if 0 < params.top_p < 1:
        logprobs = apply_top_p(logprobs, params.top_p)
    if params.min_p > 0:
        logprobs = apply_min_p(logprobs, params.min_p)
    return tokens, logprobs[0]


def logits_needed(request: GenerationRequest) -> int:
    """How many of the largest logits the choice depends on; 0: all of them."""
    params = request.sampling
    adjusted = (
        params.logit_bias
        or params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
    )
    if adjusted or request.logprobs is not None or request.grammar is not None:
        return 0
    return 1 if params.temperature == 0 else params.top_k


def scores(logits: mx.array, tokens: list[int], count: int) -> list[Score]:
    """Of one token for each row of logits [T, vocab], with the `count` most probable; equal ones by their ids."""
    logits = logits.astype(mx.float32)
    rows = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return [Score(float(row[token]), _largest(row, count)) for row, token in zip(rows, tokens, strict=True)]


def _largest(row: npt.NDArray[np.float32], count: int) -> tuple[tuple[int, float], ...]:
    count = min(count, row.size)
    if count == 0:
        return ()
    least = np.partition(row, -count)[-count]
    found = np.flatnonzero(row >= least)
    found = found[np.argsort(-row[found], kind="stable")][:count]
    return tuple((int(i), float(row[i])) for i in found)


def token_of(choice: mx.array) -> int:
    """The token id in a one-element array."""
    token = choice.item()
    assert isinstance(token, int)
    return token
