"""The merge against float64, whatever the split and the magnitudes; its fold order is a contract."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.attention.engine import Partial
from backburner.attention.merge import merge, merge_all


def partial_of(s: np.ndarray, v: np.ndarray) -> Partial:
    """A page's partial, computed in float64. s: [q_heads, T, rows], v: [rows, head_dim]."""
    if s.shape[-1] == 0:
        return empty(s.shape[:2], v.shape[-1])
    m = s.max(axis=-1, keepdims=True)
    shift = np.where(np.isfinite(m), m, 0)
    weights = np.exp(s - shift)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[..., 0]
    o = weights @ v / np.where(total == 0, 1, total)
    return Partial(o=o.astype(np.float32), lse=lse.astype(np.float32))


def empty(shape: tuple[int, ...], head_dim: int) -> Partial:
    return Partial(o=np.zeros((*shape, head_dim), np.float32), lse=np.full(shape, -np.inf, np.float32))


def random_partial(seed: int, lse_scale: float = 3.0) -> Partial:
    rng = np.random.default_rng(seed)
    return Partial(
        o=rng.normal(size=(3, 2, 8)).astype(np.float32),
        lse=(rng.normal(size=(3, 2)) * lse_scale).astype(np.float32),
    )


def assert_same_bits(a: Partial, b: Partial) -> None:
    assert a.o.dtype == b.o.dtype == a.lse.dtype == b.lse.dtype == np.float32
    assert a.o.tobytes() == b.o.tobytes()
    assert a.lse.tobytes() == b.lse.tobytes()


LOGITS = st.one_of(
    st.floats(-30, 30),
    st.sampled_from([-np.inf, 1e30, -1e30, 0.0, 88.0, -104.0, 3e38, -3e38]),
    st.floats(-1e4, 1e4),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), rows=st.integers(0, 12), queries=st.integers(1, 3))
def test_merge_of_split_pages_equals_whole_attention(data: st.DataObject, rows: int, queries: int) -> None:
    s = np.array(data.draw(st.lists(LOGITS, min_size=queries * rows, max_size=queries * rows)), np.float64)
    s = s.reshape(1, queries, rows)
    v = np.random.default_rng(rows).normal(size=(rows, 4))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))  # repeated cuts make empty pages
    edges = [0, *cuts, rows]
    pages = [partial_of(s[..., a:b], v[a:b]) for a, b in itertools.pairwise(edges)]
    merged = merge_all(pages)
    whole = partial_of(s, v)
    # lse is kept in fp32: at a magnitude of 1e4 its rounding (5e-4) is the relative error of the weights.
    finite = np.abs(whole.lse[np.isfinite(whole.lse)])
    rounding = 4 * float(np.spacing(np.float32(finite.max(initial=1.0))))
    if rounding < 0.1:
        np.testing.assert_allclose(merged.o, whole.o, rtol=0, atol=1e-5 + 10 * rounding)
    np.testing.assert_allclose(merged.lse, whole.lse, rtol=1e-6, atol=1e-5)
    assert not np.isnan(merged.o).any()
    assert not np.isnan(merged.lse).any()


@pytest.mark.parametrize("special", [0.0, -0.0, 1e-42, 3.4e38, -3.4e38])
def test_an_empty_partial_leaves_the_other_bit_for_bit(special: float) -> None:
    other = random_partial(1)
    other.o[0, 0, :3] = special
    other.lse[1, 1] = 3.4e38
    nothing = empty((3, 2), 8)
    assert_same_bits(merge(other, nothing), other)
    assert_same_bits(merge(nothing, other), other)
    assert_same_bits(merge(nothing, nothing), nothing)


def test_a_row_with_an_empty_side_does_not_change_its_neighbours() -> None:
    a, b = random_partial(2), random_partial(3)
    expected = merge(a, b)
    hole = Partial(o=b.o.copy(), lse=b.lse.copy())
    hole.o[1, 0] = 0
    hole.lse[1, 0] = -np.inf
    merged = merge(a, hole)
    assert np.array_equal(merged.o[1, 0], a.o[1, 0])
    assert np.array_equal(merged.o[0], expected.o[0])
    assert np.array_equal(merged.o[2], expected.o[2])
    assert np.array_equal(merged.lse[[0, 2]], expected.lse[[0, 2]])


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 8), data=st.data())
def test_a_folded_prefix_goes_on_to_the_same_bits(count: int, data: st.DataObject) -> None:
    partials = [random_partial(seed, lse_scale=20) for seed in range(count)]
    for seed in data.draw(st.sets(st.integers(0, count - 1))):
        partials[seed] = empty((3, 2), 8)
    cut = data.draw(st.integers(1, count))
    assert_same_bits(merge_all([merge_all(partials[:cut]), *partials[cut:]]), merge_all(partials))


def test_a_queries_bits_do_not_depend_on_how_many_are_merged_together() -> None:
    rng = np.random.default_rng(4)
    a, b = (
        Partial(
            o=rng.normal(size=(5, 37, 8)).astype(np.float32), lse=rng.normal(size=(5, 37)).astype(np.float32)
        )
        for _ in range(2)
    )
    together = merge(a, b)
    for t in (0, 5, 16, 36):
        alone = merge(*(Partial(o=x.o[:, t : t + 1].copy(), lse=x.lse[:, t : t + 1].copy()) for x in (a, b)))
        assert_same_bits(alone, Partial(o=together.o[:, t : t + 1], lse=together.lse[:, t : t + 1]))


def test_merge_leaves_its_arguments_alone() -> None:
    a, b = random_partial(5), random_partial(6)
    before = [x.tobytes() for x in (a.o, a.lse, b.o, b.lse)]
    merge_all([a, b, random_partial(7)])
    assert [x.tobytes() for x in (a.o, a.lse, b.o, b.lse)] == before


def test_merging_no_partials_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        merge_all([])
