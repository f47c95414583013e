"""The page store: pieces, budget, binding, eviction."""

import numpy as np
import pytest

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.attention.select import make_engine
from backburner.errors import BadRequest, OutOfBudget, UnknownPage
from backburner.worker.store import PageStore
from tests.host import ENGINES

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
    assert not store.has(key(1), 3, GEOMETRY)
    assert store.put(key(1), 3, 5, k[:, 5:], v[:, 5:], GEOMETRY) == 8
    assert store.has(key(1), 3, GEOMETRY)
    assert not store.has(key(1), 7, GEOMETRY)
    got_k, got_v = store.rows(key(1), 3, 2, 7, GEOMETRY)
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
    assert np.array_equal(store.rows(key(1), 3, 0, 8, GEOMETRY)[0], k)
    assert store.used_bytes == GEOMETRY.page_bytes


def test_pages_beyond_the_budget_are_refused_by_name_and_nothing_is_lost() -> None:
    store = store_of(4)
    put_whole(store, 1)
    put_whole(store, 2)
    store.bind(1, [key(1), key(2)], LAYERS, GEOMETRY)
    with pytest.raises(OutOfBudget, match="--memory"):
        put_whole(store, 3)
    assert store.used_bytes == 4 * GEOMETRY.page_bytes
    assert len(store.bound_pages(1, 7, 0, 2, GEOMETRY)) == 2


def test_idle_pages_give_way_oldest_use_first() -> None:
    store = store_of(6)
    for n in (1, 2, 3):
        put_whole(store, n)
    store.bind(1, [key(2)], LAYERS, GEOMETRY)
    assert store.has(key(1), 3, GEOMETRY)  # a use: page 3 is now the one idle longest
    assert store.has(key(1), 7, GEOMETRY)
    assert store.free_bytes == 4 * GEOMETRY.page_bytes
    put_whole(store, 4)
    assert not store.has(key(3), 3, GEOMETRY)
    assert store.has(key(1), 3, GEOMETRY)
    assert store.has(key(2), 3, GEOMETRY)
    store.release(1)
    put_whole(store, 5)
    put_whole(store, 6)
    assert store.used_bytes == 6 * GEOMETRY.page_bytes


def test_binding_needs_pages_complete_at_all_layers() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.put(key(2), 3, 0, *rows(8), GEOMETRY)
    with pytest.raises(UnknownPage, match="page 1 of sequence 9 is not complete at layer 7"):
        store.bind(9, [key(1), key(2)], LAYERS, GEOMETRY)
    with pytest.raises(UnknownPage, match="not bound"):
        store.bound_pages(9, 3, 0, 1, GEOMETRY)
    store.bind(9, [key(1)], LAYERS, GEOMETRY)
    with pytest.raises(BadRequest, match="bound to 1"):
        store.bound_pages(9, 3, 0, 2, GEOMETRY)


def test_bound_pages_cannot_be_dropped_and_released_ones_can() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.bind(1, [key(1)], LAYERS, GEOMETRY)
    with pytest.raises(BadRequest, match="release"):
        store.drop([key(1)])
    store.release(1)
    store.drop([key(1), key(5)])
    assert (len(store), store.used_bytes) == (0, 0)


def test_when_the_host_leaves_complete_pages_stay() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.put(key(2), 3, 0, *(x[:, :3] for x in rows(8)), GEOMETRY)
    store.bind(1, [key(1)], LAYERS, GEOMETRY)
    store.release_all()
    assert store.sequences == 0
    assert store.complete_pages() == len(store) == 2


OTHER = Geometry(4, 2, 64, 4, "float32", 0.125)  # smaller pages: all that GEOMETRY fills would be complete


def test_a_page_of_another_geometry_does_not_count() -> None:
    store = store_of(8)
    put_whole(store, 1)
    assert store.has(key(1), 3, GEOMETRY)
    assert not store.has(key(1), 3, OTHER)
    with pytest.raises(UnknownPage, match="not complete"):
        store.bind(1, [key(1)], LAYERS, OTHER)
    with pytest.raises(UnknownPage, match="not stored"):
        store.rows(key(1), 3, 0, 4, OTHER)
    store.bind(1, [key(1)], LAYERS, GEOMETRY)
    with pytest.raises(UnknownPage, match="not stored"):
        store.bound_pages(1, 3, 0, 1, OTHER)


def test_a_page_of_another_geometry_is_replaced_unless_it_is_bound() -> None:
    store = store_of(8)
    put_whole(store, 1)
    store.bind(1, [key(1)], LAYERS, GEOMETRY)
    with pytest.raises(BadRequest, match="bound with another page geometry"):
        store.put(key(1), 3, 0, *rows(4), OTHER)
    assert store.has(key(1), 3, GEOMETRY)
    store.release(1)
    k, v = rows(4, seed=5)
    assert store.put(key(1), 3, 0, k, v, OTHER) == 4
    assert store.has(key(1), 3, OTHER)
    assert np.array_equal(store.rows(key(1), 3, 0, 4, OTHER)[0], k)
    assert not store.has(key(1), 3, GEOMETRY)
    assert store.used_bytes == GEOMETRY.page_bytes + OTHER.page_bytes


def test_a_refused_piece_changes_nothing() -> None:
    store = store_of(2)
    put_whole(store, 1)
    with pytest.raises(BadRequest, match="exceed"):
        store.put(key(2), 3, 0, *rows(9), GEOMETRY)
    assert store.has(key(1), 3, GEOMETRY), "an idle page gave way to a piece that was refused"
    assert len(store) == 2
    store.drop([key(1)])
    store.put(key(3), 3, 0, *rows(5), GEOMETRY)
    with pytest.raises(BadRequest, match="exceed"):
        store.put(key(3), 3, 0, *rows(9), GEOMETRY)
    assert store.put(key(3), 3, 5, *rows(3), GEOMETRY) == 8, "what was stored of the page is lost"


def test_a_page_that_could_not_be_made_takes_nothing_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(2)

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(NumpyEngine, "new_page", no_memory)
        for _ in range(3):
            with pytest.raises(MemoryError):
                store.put(key(1), 3, 0, *rows(8), GEOMETRY)
    assert (len(store), store.used_bytes) == (0, 0)
    put_whole(store, 1)


@pytest.mark.parametrize("page_tokens", [8, 64, 65, 257])
@pytest.mark.parametrize("name", ENGINES)
def test_the_budget_counts_what_the_engine_allocates(name: str, page_tokens: int) -> None:
    engine = make_engine(name)
    geometry = Geometry(2, 1, 20, page_tokens, "float16", 0.125)
    page = engine.new_page(geometry)
    allocated = page.data.nbytes if name == "native" else page.k.nbytes + page.v.nbytes
    assert engine.page_bytes(geometry) == allocated
    store = PageStore(engine, 2 * allocated - 1)
    piece = np.zeros((1, 1, 20), np.float16)
    store.put(key(1), 3, 0, piece, piece, geometry)
    assert store.used_bytes == allocated
    with pytest.raises(OutOfBudget):
        store.put(key(1), 7, 0, piece, piece, geometry)
    store.drop([key(1)])
    assert store.used_bytes == 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_page_of_any_size_is_counted_without_overflow(name: str) -> None:
    most = 2**31 - 1
    for geometry in (
        Geometry(most, most, most, most, "float32", 1.0),
        Geometry(2, 2, most, most, "float32", 1.0),
    ):
        assert make_engine(name).page_bytes(geometry) >= geometry.page_bytes
