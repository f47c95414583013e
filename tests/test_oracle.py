"""Host alone against mlx-lm on the same weights: the same greedy tokens in fp32."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from backburner.model.load import TINY
from tests.host import ENGINES, chat, generate, host, long_prompt

TOKENS = 64

PROMPTS = {
    "short": lambda: chat("What is Backburner?"),
    "with a system message": lambda: chat("Hello!", "You are terse."),
    "longer than four pages": long_prompt,
}


@pytest.fixture(scope="module")
def oracle():
    """mlx-lm's own model, cache and generation loop, with its weights in fp32."""
    model, _ = load_model(TINY)
    model.set_dtype(mx.float32)
    return model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_tokens_equal_mlx_lm(oracle, name: str, engine: str) -> None:
    prompt = PROMPTS[name]()
    if name == "longer than four pages":
        assert len(prompt) > 4 * 64
    expected = [int(token) for token, _ in generate_step(mx.array(prompt), oracle, max_tokens=TOKENS)]
    with host(engine=engine) as runner:
        tokens, _ = generate(runner, prompt, TOKENS)
    assert tokens == expected
