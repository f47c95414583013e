"""The chunked delta rule against the token loop in float64, correlated keys and hard gates included."""

import mlx.core as mx
import numpy as np
import pytest

from backburner.model.delta import chunked_gated_delta, gated_delta_ops, use_chunked_delta

use_chunked_delta()


def recurrence(q, k, v, g, beta, state):
    """The definition, token by token, in float64."""
    q, k, v, g, beta, state = (np.asarray(x, np.float64) for x in (q, k, v, g, beta, state))
    ys = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None]
        delta = (v[:, t] - np.einsum("bhvk,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + np.einsum("bhv,bhk->bhvk", delta, k[:, t])
        ys.append(np.einsum("bhvk,bhk->bhv", state, q[:, t]))
    return np.stack(ys, 1), state


def inputs(
    tokens: int, *, heads: int = 3, dk: int = 32, dv: int = 48, cosine: float = 0.0, gate: str = "usual"
):
    r = np.random.default_rng(tokens)
    base = r.standard_normal((1, 1, heads, dk))
    k = cosine * base / np.linalg.norm(base, axis=-1, keepdims=True) * np.sqrt(dk)
    k = k + np.sqrt(1 - cosine**2) * r.standard_normal((1, tokens, heads, dk))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    q = r.standard_normal((1, tokens, heads, dk)) / dk
    v = r.standard_normal((1, tokens, heads, dv))
    g = {
        "usual": r.uniform(0.8, 1.0, (1, tokens, heads)),
        "none": np.ones((1, tokens, heads)),
        "hard": r.choice([0.0, 1e-30, 0.5, 1.0], (1, tokens, heads)),
    }[gate]
    beta = r.uniform(0.0, 1.0, (1, tokens, heads)) if cosine == 0 else np.full((1, tokens, heads), 0.95)
    state = r.standard_normal((1, heads, dv, dk))
    return [np.asarray(x, np.float32) for x in (q, k, v, g, beta, state)]


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 100, 256])
@pytest.mark.parametrize("gate", ["usual", "none", "hard"])
def test_it_equals_the_recurrence(tokens: int, gate: str) -> None:
    arrays = inputs(tokens, gate=gate)
    y, state = chunked_gated_delta(*map(mx.array, arrays))
    expected_y, expected_state = recurrence(*arrays)
    assert np.abs(np.array(y) - expected_y).max() < 2e-6
    assert np.abs(np.array(state) - expected_state).max() < 2e-5


@pytest.mark.parametrize("cosine", [0.9, 0.99])
@pytest.mark.parametrize("chunk", [16, 64])
def test_correlated_keys_stay_stable(cosine: float, chunk: int) -> None:
    """Where the product form of the inverse gives NaN."""
    arrays = inputs(256, cosine=cosine, gate="none")
    y, state = chunked_gated_delta(*map(mx.array, arrays), chunk=chunk)
    expected_y, expected_state = recurrence(*arrays)
    assert np.abs(np.array(y) - expected_y).max() < 1e-5
    assert np.abs(np.array(state) - expected_state).max() < 1e-4


def test_two_calls_equal_one() -> None:
    q, k, v, g, beta, state = map(mx.array, inputs(96))
    whole, end = chunked_gated_delta(q, k, v, g, beta, state)
    first, middle = chunked_gated_delta(q[:, :40], k[:, :40], v[:, :40], g[:, :40], beta[:, :40], state)
    second, end_2 = chunked_gated_delta(q[:, 40:], k[:, 40:], v[:, 40:], g[:, 40:], beta[:, 40:], middle)
    assert np.abs(np.array(mx.concatenate([first, second], 1) - whole)).max() < 2e-6
    assert np.abs(np.array(end_2 - end)).max() < 1e-5


def test_masked_tokens_leave_no_trace() -> None:
    q, k, v, g, beta, state = map(mx.array, inputs(20))
    mask = mx.array([[True] * 12 + [False] * 8])
    _, state_masked = gated_delta_ops(q, k, v, g, beta, state, mask)
    _, state_short = gated_delta_ops(*(x[:, :12] for x in (q, k, v, g, beta)), state)
    assert np.abs(np.array(state_masked - state_short)).max() < 1e-6


def test_grouped_heads_equal_repeated_ones() -> None:
    q, k, v, g, beta, state = map(mx.array, inputs(32, heads=4))
    y, _ = gated_delta_ops(q[:, :, :2], k[:, :, :2], v, g, beta, state)
    repeated, _ = chunked_gated_delta(
        mx.repeat(q[:, :, :2], 2, -2), mx.repeat(k[:, :, :2], 2, -2), v, g, beta, state
    )
    assert np.array_equal(np.array(y), np.array(repeated))


def test_mlx_lm_runs_it() -> None:
    from mlx_lm.models import gated_delta

    assert gated_delta.gated_delta_ops is gated_delta_ops
