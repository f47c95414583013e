"""The page store: pieces, budget, binding, eviction."""

import numpy as np
import pytest

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.errors import BadRequest, OutOfBudget, UnknownPage
from backburner.worker.store import PageStore

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim=64, page_tokens=8, dtype="float32", scale=0.125)
LAYERS = (3, 7)


def key(n: int) -> bytes:
    return bytes([n]) * 32


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    shape = (GEOMETRY.kv_heads, count, GEOMETRY.head_dim)
    return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)


def store_of(pages: int) -> PageStore:
    return PageStore(NumpyEngine(), pages * GEOMETRY.page_bytes)


def put_whole(store: PageStore, n: int) -> None:
    for layer in LAYERS:
        store.put(key(n), layer, 0, *rows(8, n * 10 + layer), GEOMETRY)


def test_a_page_in_pieces_is_complete_when_its_last_row_has_come() -> None:
    store = store_of(4)
    k, v = rows(8)
    assert store.put(key(1), 3, 0, k[:, :5], v[:, :5], GEOMETRY) == 5
    assert not store.has(key(1), 3)
    assert store.put(key(1), 3, 5, k[:, 5:], v[:, 5:], GEOMETRY) == 8
    assert store.has(key(1), 3)
    assert not store.has(key(1), 7)
    got_k, got_v = store.rows(key(1), 3, 2, 7)
    assert np.array_equal(got_k, k[:, 2:7])
    assert np.array_equal(got_v, v[:, 2:7])


def test_pieces_that_do_not_follow_are_refused() -> None:
    store = store_of(4)
    k, v = rows(8)
    with pytest.raises(BadRequest, match="has not begun"):
        store.put(key(1), 3, 4, k[:, 4:], v[:, 4:], GEOMETRY)
    store.put(key(1), 3, 0, k[:, :2], v[:, :2], GEOMETRY)
    with pytest.raises(BadRequest, match="does not follow"):
        store.put(key(1), 3, 4, k[:, 4:], v[:, 4:], GEOMETRY)
    with pytest.raises(BadRequest, match="exceed"):
        store.put(key(1), 3, 2, k, v, GEOMETRY)


def test_an_unfinished_page_may_start_again_and_a_complete_one_stays() -> None:
    store = store_of(4)
    k, v = rows(8)
    store.put(key(1), 3, 0, k[:, :2], v[:, :2], GEOMETRY)
    assert store.put(key(1), 3, 0, k, v, GEOMETRY) == 8
    other_k, other_v = rows(8, seed=9)
    assert store.put(key(1), 3, 0, other_k, other_v, GEOMETRY) == 8
    assert np.array_equal(store.rows(key(1), 3, 0, 8)[0], k)
    assert store.used_bytes == GEOMETRY.page_bytes


def test_pages_beyond_the_budget_are_refused_by_name_and_nothing_is_lost() -> None:
    store = store_of(4)
    put_whole(store, 1)
    put_whole(store, 2)
    store.bind(1, [key(1), key(2)], LAYERS)
    with pytest.raises(OutOfBudget, match="--memory"):
        put_whole(store, 3)
    assert store.used_bytes == 4 * GEOMETRY.page_bytes
    assert len(store.bound_pages(1, 7, 0, 2)) == 2


def test_idle_pages_give_way_oldest_use_first() -> None:
    store = store_of(6)
    for n in (1, 2, 3):
        put_whole(store, n)
    store.bind(1, [key(2)], LAYERS)
    assert store.has(key(1), 3)  # a use: page 3 is now the one idle longest
    assert store.has(key(1), 7)
    assert store.free_bytes == 4 * GEOMETRY.page_bytes
    put_whole(store, 4)
    assert not store.has(key(3), 3)
    assert store.has(key(1), 3)
    assert store.has(key(2), 3)
    store.release(1)
    put_whole(store, 5)
    put_whole(store, 6)
    assert store.used_bytes == 6 * GEOMETRY.page_bytes


def test_binding_needs_pages_complete_at_all_layers() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.put(key(2), 3, 0, *rows(8), GEOMETRY)
    with pytest.raises(UnknownPage, match="page 1 of sequence 9 is not complete at layer 7"):
        store.bind(9, [key(1), key(2)], LAYERS)
    with pytest.raises(UnknownPage, match="not bound"):
        store.bound_pages(9, 3, 0, 1)
    store.bind(9, [key(1)], LAYERS)
    with pytest.raises(BadRequest, match="bound to 1"):
        store.bound_pages(9, 3, 0, 2)


def test_bound_pages_cannot_be_dropped_and_released_ones_can() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.bind(1, [key(1)], LAYERS)
    with pytest.raises(BadRequest, match="release"):
        store.drop([key(1)])
    store.release(1)
    store.drop([key(1), key(5)])
    assert (len(store), store.used_bytes) == (0, 0)


def test_when_the_host_leaves_complete_pages_stay() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.put(key(2), 3, 0, *(x[:, :3] for x in rows(8)), GEOMETRY)
    store.bind(1, [key(1)], LAYERS)
    store.release_all()
    assert store.sequences == 0
    assert store.complete_pages() == len(store) == 2


def test_geometries_do_not_mix_under_one_key() -> None:
    store = store_of(8)
    put_whole(store, 1)
    other = Geometry(4, 2, 64, 16, "float32", 0.125)
    with pytest.raises(BadRequest, match="geometry"):
        store.put(key(1), 3, 0, *rows(8), other)
