"""From logits to a token: what may be drawn, penalties, bias, and whose draws they are."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.engine.request import GenerationRequest, Grammar, SamplingParams
from backburner.engine.sampling import Sampler, candidates, logits_needed

VOCAB = 97


def request(
    prompt: tuple[int, ...] = (1, 2, 3), logprobs: int | None = None, **sampling
) -> GenerationRequest:
    return GenerationRequest("r", prompt, 10, SamplingParams(**sampling), logprobs=logprobs)


def sampler(prompt: tuple[int, ...] = (1, 2, 3), **sampling) -> Sampler:
    return Sampler(request(prompt, **sampling), VOCAB)


def logits(seed: int, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=VOCAB) * spread).astype(np.float32)


def oracle(row: np.ndarray, params: SamplingParams) -> tuple[set[int], set[int]]:
    """In float64: tokens that have to stay, and tokens that may. They differ where rounding decides."""
    scaled = row.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    shares = np.exp(scaled[order] - scaled[order[0]])
    shares /= shares.sum()
    above = np.cumsum(shares) - shares
    sure, possible = np.ones(len(order), bool), np.ones(len(order), bool)
    if params.top_p < 1:
        sure &= above < params.top_p - 1e-5
        possible &= above < params.top_p + 1e-5
    if params.min_p > 0:
        sure &= shares > params.min_p * shares[0] * (1 + 1e-5)
        possible &= shares > params.min_p * shares[0] * (1 - 1e-5)
    sure[0] = True
    return set(order[sure].tolist()), set(order[possible].tolist())


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([0.3, 1.0, 3.0, 10.0]),
    st.sampled_from([0.05, 0.6, 1.0, 2.0]),
    st.sampled_from([0, 1, 2, 5, 20, VOCAB - 1, VOCAB, VOCAB + 1]),
    st.one_of(st.just(1.0), st.floats(1e-4, 1.0)),
    st.one_of(st.just(0.0), st.floats(1e-4, 1.0)),
)
def test_what_may_be_drawn_is_what_float64_says(
    seed: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = logits(seed, spread)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    tokens, logprobs = candidates(mx.array(row), params)
    ids = np.arange(VOCAB) if tokens is None else np.array(tokens)
    kept = np.isfinite(np.array(logprobs))
    sure, possible = oracle(row, params)
    assert sure <= set(ids[kept].tolist()) <= possible
    # Among themselves they keep the proportions that temperature gives them.
    values = np.array(logprobs)[kept].astype(np.float64)
    scaled = row[ids[kept]].astype(np.float64) / temperature
    assert np.allclose(values - values[0], scaled - scaled[0], rtol=1e-5, atol=1e-4)


def test_draws_follow_the_distribution() -> None:
    choose = sampler(temperature=0.8, top_k=4, seed=5)
    row = logits(3)
    counts = Counter(choose(mx.array(row)).token for _ in range(4000))
    best = np.argsort(-row)[:4]
    shares = np.exp(row[best].astype(np.float64) / 0.8)
    shares /= shares.sum()
    assert set(counts) == set(best.tolist())
    for token, share in zip(best.tolist(), shares, strict=True):
        assert abs(counts[token] / 4000 - share) < 5 * np.sqrt(share * (1 - share) / 4000) + 1e-9


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[40, 7, 90]] = 5.0
    assert sampler()(mx.array(row)).token == 7


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-6])
def test_the_lowest_temperatures_are_greedy_and_finite(temperature: float) -> None:
    row = logits(1, 50.0)
    assert sampler(temperature=temperature, seed=1)(mx.array(row)).token == int(row.argmax())


def penalised(
    row: np.ndarray, prompt: tuple[int, ...], answer: list[int], params: SamplingParams
) -> np.ndarray:
    """The formulas of OpenAI's reference and of the CTRL paper, one token at a time."""
    out = row.astype(np.float64)
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in {*prompt, *answer}:
        factor = params.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
    for token, count in Counter(answer).items():
        out[token] -= params.presence_penalty + count * params.frequency_penalty
    return out


@pytest.mark.parametrize(
    "sampling",
    [
        {"presence_penalty": 1.5},
        {"presence_penalty": -1.0, "frequency_penalty": 0.7},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": ((4, 3.0), (5, -100.0), (4, 0.5))},
    ],
    ids=str,
)
def test_penalties_count_the_right_tokens(sampling: dict) -> None:
    prompt, params, answer = (1, 2, 2, 3), SamplingParams(**sampling), []
    choose = sampler(prompt, **sampling)
    for step in range(40):
        row = logits(step % 3)  # the same rows again and again, so that penalties decide
        expected = penalised(row, prompt, answer, params)
        answer.append(choose(mx.array(row)).token)
        assert expected[answer[-1]] >= expected.max() - 1e-4
    assert len(set(answer)) > (1 if params.presence_penalty >= 0 else 0)


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[2], row[50] = 1.0, 0.9
    assert sampler((2, 2, 2), presence_penalty=2.0, frequency_penalty=2.0)(mx.array(row)).token == 2
    assert sampler((2, 2, 2), repetition_penalty=2.0)(mx.array(row)).token == 50


def test_a_repeated_token_falls_whatever_the_sign_of_its_logit() -> None:
    row = np.full(VOCAB, -5.0, np.float32)
    row[2], row[50] = -1.0, -1.5
    assert sampler((2,), repetition_penalty=2.0)(mx.array(row)).token == 50
    row[2], row[50] = 1.5, 1.0
    assert sampler((2,), repetition_penalty=2.0)(mx.array(row)).token == 50


def test_a_bias_forces_and_forbids() -> None:
    row = logits(9)
    best = int(row.argmax())
    assert sampler(logit_bias=((11, 100.0),))(mx.array(row)).token == 11
    assert sampler(logit_bias=((best, -100.0),))(mx.array(row)).token != best
    with pytest.raises(ValueError, match="token 97"):
        sampler(logit_bias=((97, 1.0),))


def test_the_logits_and_their_type_are_left_as_they_were() -> None:
    row = mx.array(logits(2)).astype(mx.bfloat16)
    before = np.array(row.astype(mx.float32))
    sampler(temperature=1.0, top_p=0.5, presence_penalty=1.0, repetition_penalty=2.0, logit_bias=((3, 1.0),))(
        row
    )
    assert np.array_equal(np.array(row.astype(mx.float32)), before)


def draws(choose: Sampler, count: int = 12) -> list[int]:
    return [choose(mx.array(logits(i, 1.0))).token for i in range(count)]


def test_a_seed_fixes_the_draws_whatever_runs_in_between() -> None:
    expected = draws(sampler(temperature=1.0, seed=42))
    ours, other, got = sampler(temperature=1.0, seed=42), sampler(temperature=1.0, seed=42), []
    for i in range(12):
        mx.random.seed(i)
        mx.random.uniform()
        row = mx.array(logits(i, 1.0))
        got.append(ours(row).token)
        if i % 2:
            other(row)
    assert got == expected
    assert draws(sampler(temperature=1.0, seed=43)) != expected
    assert draws(sampler(temperature=1.0)) != draws(sampler(temperature=1.0))


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1, -1])
def test_every_seed_of_64_bits_is_taken(seed: int) -> None:
    assert draws(sampler(temperature=1.0, seed=seed)) == draws(sampler(temperature=1.0, seed=seed))
    assert draws(sampler(temperature=1.0, seed=seed)) != draws(sampler(temperature=1.0, seed=seed ^ 2**40))


def test_what_is_needed_of_the_logits() -> None:
    assert logits_needed(request()) == 1
    assert logits_needed(request(temperature=1.0, top_k=9, top_p=0.5, min_p=0.1)) == 9
    for needs_all in (
        request(temperature=1.0),
        request(logprobs=0),
        request(temperature=1.0, top_k=9, repetition_penalty=1.1),
        request(presence_penalty=0.1),
        request(frequency_penalty=0.1),
        request(logit_bias=((1, 1.0),)),
        GenerationRequest("r", (1,), 1, grammar=Grammar()),
    ):
        assert logits_needed(needs_all) == 0
