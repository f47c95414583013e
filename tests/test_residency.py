"""The residency policy and the context arithmetic, over all their inputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.attention.engine import Geometry
from backburner.errors import ConfigError
from backburner.kv.capacity import capacity, context_size
from backburner.kv.residency import Residency

pages = st.integers(1, 4096)
tokens = st.integers(0, 1_000_000)


@st.composite
def policies(draw) -> Residency:
    page_tokens = draw(pages)
    return Residency(page_tokens, draw(st.integers(page_tokens, 200_000)))


@given(policies(), tokens)
def test_the_newest_window_always_stays(policy: Residency, n: int) -> None:
    held = policy.held_target(n)
    assert n - held * policy.page_tokens >= min(n, policy.window_tokens)


@given(policies(), tokens)
def test_no_whole_page_outside_the_window_stays(policy: Residency, n: int) -> None:
    outside = n - policy.window_tokens - policy.held_target(n) * policy.page_tokens
    assert outside < policy.page_tokens or policy.held_target(n) == policy.max_pages


@given(policies(), tokens, tokens)
def test_only_full_pages_are_copied_and_all_that_must_go_are(policy: Residency, n: int, more: int) -> None:
    copied = policy.copy_target(n, n + more)
    assert copied * policy.page_tokens <= n
    assert copied >= policy.held_target(n)


@given(policies(), tokens, st.integers(0, 1000))
def test_nothing_is_dropped_that_was_not_acknowledged(policy: Residency, n: int, acknowledged: int) -> None:
    assert policy.droppable(n, acknowledged) <= acknowledged
    assert policy.droppable(n, acknowledged) + policy.overdue(n, acknowledged) == policy.held_target(n)


@given(policies(), tokens)
def test_pages_cross_ahead_of_need(policy: Residency, n: int) -> None:
    """When the sequence grows by one page, what must go then is full and has been offered now."""
    wanted = policy.held_target(n + policy.page_tokens)
    assert policy.copy_target(n, n) == min(wanted, n // policy.page_tokens)


GEOMETRY = Geometry(q_heads=24, kv_heads=4, head_dim=256, page_tokens=4096, dtype="float16", scale=1 / 16)


def test_a_27b_model_needs_64_kib_a_token() -> None:
    cap = capacity(
        GEOMETRY.page_bytes,
        GEOMETRY.page_tokens,
        16,
        host_free_bytes=8 * 2**30,
        worker_free_bytes=[6 * 2**30],
        model_tokens=262_144,
    )
    assert cap.token_bytes == 65_536
    assert cap.host_tokens == int(8 * 2**30 * 0.7) // (65_536 * 4096) * 4096
    assert cap.worker_tokens == 6 * 2**30 // (65_536 * 4096) * 4096
    assert cap.total_tokens == cap.host_tokens + cap.worker_tokens
    assert context_size(None, cap) == cap.total_tokens


def test_the_models_own_limit_bounds_the_context() -> None:
    cap = capacity(GEOMETRY.page_bytes, GEOMETRY.page_tokens, 16, 2**40, (), model_tokens=262_144)
    assert context_size(None, cap) == 262_144
    with pytest.raises(ConfigError, match="262144"):
        context_size(300_000, cap)


def test_a_page_lies_at_one_worker() -> None:
    page = 16 * GEOMETRY.page_bytes
    cap = capacity(
        GEOMETRY.page_bytes, GEOMETRY.page_tokens, 16, 0, [page + page // 2] * 2, model_tokens=2**40
    )
    assert cap.worker_tokens == 2 * GEOMETRY.page_tokens


def test_a_context_that_cannot_be_held_is_refused_with_the_numbers() -> None:
    cap = capacity(GEOMETRY.page_bytes, GEOMETRY.page_tokens, 16, 2**30, [2**29], model_tokens=262_144)
    with pytest.raises(
        ConfigError, match=rf"host can hold {cap.host_tokens} and the worker {cap.worker_tokens}"
    ):
        context_size(cap.total_tokens + 1, cap)
    assert context_size(cap.total_tokens, cap) == cap.total_tokens


def test_a_sequence_never_holds_more_pages_than_a_worker_binds() -> None:
    policy = Residency(page_tokens=16, window_tokens=16, max_pages=5)
    assert policy.held_target(10_000) == 5
    assert policy.copy_target(10_000, 10_000) == 5
    assert policy.overdue(10_000, 5) == 0
    cap = capacity(GEOMETRY.page_bytes, GEOMETRY.page_tokens, 16, 2**40, [2**60], model_tokens=2**40)
    assert cap.worker_tokens == 1024 * GEOMETRY.page_tokens
