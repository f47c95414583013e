"""The worker's tail against the host alone: the same bits for the layers after a seam, whatever happened before."""

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from backburner.attention.engine import Geometry
from backburner.attention.folded import attend_folded
from backburner.attention.select import make_engine
from backburner.engine.worker_link import greet
from backburner.errors import BadRequest, Mismatch, NoModel, OutOfBudget, RemoteError, UnknownPage
from backburner.kv.pages import PageTable
from backburner.model.arrays import from_numpy, to_numpy
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.load import TINY, Part, load, read_config
from backburner.transport import messages as m
from backburner.transport.link import Link
from backburner.worker.loopback import LoopbackWorker
from backburner.worker.mirror import KEPT_MAX, Mirror, numpy_dtype
from backburner.worker.server import WorkerServer
from backburner.worker.tail import largest
from tests.host import ATTENTION, BEST_ENGINE, LAYERS, link_to, serving, tiny, until

PAGE = 32
UBATCH = 24
TAIL = ATTENTION[1:]  # the attention layers from 4 on
MODEL = ("tiny", TINY)
PAGE_BYTES = make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(PAGE))
LONG = [UBATCH] * 4 + [17, 1, 1, 30]


def tokens(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 3000, count).tolist()


def key(ids: Sequence[int]) -> bytes:
    """Any name will do that is another for other tokens."""
    return np.asarray(ids, "<i4").tobytes().ljust(32, b"\0")[-32:] + len(ids).to_bytes(4, "little")


def keys_of(ids: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(key(ids[:stop]) for stop in range(UBATCH, len(ids) + 1, UBATCH))


def fingerprint(first: int, stop: int = LAYERS, head: bool = True) -> bytes:
    return layers_fingerprint(TINY, read_config(TINY), first, stop, head)


@dataclass
class Step:
    """What one chunk looks like on a host alone."""

    position: int
    end: int
    residuals: list[np.ndarray]  # before each layer and after the last: [T, hidden]
    states: dict[int, tuple[np.ndarray, np.ndarray]]  # by recurrent layer
    rows: dict[int, tuple[np.ndarray, np.ndarray]]  # by attention layer, the chunk's
    logits: np.ndarray  # [vocab], after the last row


class Alone:
    """All layers on the host, as its runner runs them: in one go, evaluated at the end."""

    def __init__(self, ids: Sequence[int], lengths: Sequence[int], engine: str = BEST_ENGINE) -> None:
        self.ids = list(ids)
        model = tiny().model
        self.table = PageTable(make_engine(engine), model.geometry(PAGE), ATTENTION, b"")
        caches = [self.table.layers[i] if i in ATTENTION else model.new_state() for i in range(LAYERS)]
        self.steps: list[Step] = []
        start = 0
        for length in lengths:
            residual = model.embed(mx.array(np.asarray(self.ids[start : start + length], np.int32)))
            residuals = [residual]
            for i in range(LAYERS):
                residuals.append(model.run_layers(residuals[-1], caches, i, i + 1))
            logits = model.logits(residuals[-1][:, -1:])[0]
            states = {i: caches[i].cache for i in range(LAYERS) if i not in ATTENTION}
            mx.eval(states, logits, residuals)
            self.steps.append(
                Step(
                    start,
                    start + length,
                    [np.array(r)[0] for r in residuals],
                    {i: (np.array(a), np.array(b)) for i, (a, b) in states.items()},
                    {i: self.rows(i, start, start + length) for i in ATTENTION},
                    np.array(logits),
                )
            )
            start += length

    def rows(self, layer: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        engine, pages = self.table.engine, self.table.layers[layer].pages
        k, v = zip(*(engine.rows(page, 0, page.filled) for page in pages), strict=True)
        return tuple(np.concatenate(x, axis=1)[:, start:stop].copy() for x in (k, v))

    def chunk(self, step: Step, first: int, **changes) -> m.TailChunk:
        named = step.end % UBATCH == 0 and step.position % UBATCH == 0
        fields = {
            "sequence": 1,
            "position": step.position,
            "residual": step.residuals[first],
            "key": key(self.ids[: step.end]) if named else None,
            "rows": True,
            "keep": True,
            "top": 0,
        }
        return m.TailChunk(**fields | changes)


@lru_cache
def alone(seed: int = 1, lengths: tuple[int, ...] = tuple(LONG), engine: str = BEST_ENGINE) -> Alone:
    return Alone(tokens(sum(lengths), seed), lengths, engine)


def equal(a: np.ndarray | None, b: np.ndarray) -> bool:
    return a is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check(ack: m.TailAck, step: Step, first: int, stop: int = LAYERS) -> None:
    assert ack.position == step.end
    assert ack.seconds > 0
    layers = [i for i in ATTENTION if first <= i < stop]
    if layers:
        assert equal(ack.k, np.stack([step.rows[i][0] for i in layers]))
        assert equal(ack.v, np.stack([step.rows[i][1] for i in layers]))
    else:
        assert ack.k is None
    if stop < LAYERS:
        assert equal(ack.residual, step.residuals[stop])
        assert ack.logits is None
    else:
        assert ack.residual is None
        assert equal(ack.logits, step.logits)


@contextmanager
def tail_server(**changes) -> Iterator[WorkerServer]:
    with serving(**{"model": MODEL} | changes) as server:
        yield server


def greeted(
    server: WorkerServer, geometry: Geometry | None = None, layers: Sequence[int] = ATTENTION
) -> Link:
    link = link_to(server, 30.0)
    welcome = greet(link, geometry or tiny().model.geometry(PAGE), layers, b"model", BEST_ENGINE)
    assert welcome.layers == LAYERS
    return link


def open_tail(
    link: Link,
    first: int,
    keys: Sequence[bytes] = (),
    sequence: int = 1,
    stop: int = LAYERS,
    head: bool = True,
) -> m.TailOpened:
    name = fingerprint(first, stop, head)
    return link.exchange(m.TailOpen(sequence, first, stop, head, name, UBATCH, tuple(keys)))


@pytest.fixture(scope="module")
def server() -> Iterator[WorkerServer]:
    """One worker for tests that leave nothing behind that another would see: each uses its own tokens."""
    with tail_server() as server:
        yield server


@pytest.fixture
def link(server: WorkerServer) -> Iterator[Link]:
    until(lambda: server._serving is None)
    link = greeted(server)
    yield link
    link.close()
    until(lambda: server._serving is None)


def test_every_seam_gives_the_bits_of_the_host_alone(server: WorkerServer, link: Link) -> None:
    host = alone()
    for first in range(LAYERS):
        opened = open_tail(link, first)
        assert (opened.rows, opened.states) == (0, ())
        assert opened.layer_us > 0
        for step in host.steps:
            check(link.exchange(host.chunk(step, first)), step, first)


@pytest.mark.parametrize(("first", "stop"), [(2, 5), (3, 4), (4, 6), (0, 4)])
def test_a_range_in_the_middle_sends_its_residual_on(link: Link, first: int, stop: int) -> None:
    host = alone()
    open_tail(link, first, stop=stop, head=False)
    for step in host.steps:
        check(link.exchange(host.chunk(step, first, top=None)), step, first, stop)


@pytest.mark.parametrize("engine", ["numpy", "mlx"])
def test_other_engines_agree_with_themselves(engine: str) -> None:
    host = alone(engine=engine)
    with tail_server(engine=engine) as server:
        link = greeted(server)
        open_tail(link, 4)
        for step in host.steps[:5]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        link.close()


def test_nothing_is_sent_back_that_was_not_asked_for(link: Link) -> None:
    host = alone()
    open_tail(link, 4)
    ack = link.exchange(host.chunk(host.steps[0], 4, rows=False, keep=False, top=None))
    assert (ack.k, ack.v, ack.residual, ack.logits, ack.ids) == (None,) * 5
    check(link.exchange(host.chunk(host.steps[1], 4)), host.steps[1], 4)


def test_the_largest_logits_come_with_their_ids(link: Link) -> None:
    host = alone()
    open_tail(link, 4)
    ack = link.exchange(host.chunk(host.steps[0], 4, top=40))
    order = np.argsort(-host.steps[0].logits, kind="stable")[:40].astype(np.int32)
    assert equal(ack.ids, order)
    assert equal(ack.logits, host.steps[0].logits[order])
    everything = link.exchange(host.chunk(host.steps[1], 4, top=10**6))
    assert len(everything.ids) == len(host.steps[1].logits)


def test_equal_logits_are_ordered_by_their_ids() -> None:
    values = np.array([1, 3, 3, 0, 3, 2], np.float32)
    assert largest(values, 2).tolist() == [1, 2]
    assert largest(values, 4).tolist() == [1, 2, 4, 5]
    assert largest(values, 9).tolist() == [1, 2, 4, 5, 0, 3]


def test_a_second_turn_finds_the_first_ones_rows_and_states(link: Link) -> None:
    first_turn = alone(seed=2)
    open_tail(link, 4, keys_of(first_turn.ids))
    for step in first_turn.steps:
        link.exchange(first_turn.chunk(step, 4, keep=step.end % UBATCH == 0))
    # The next prompt shares 3 ubatches, then differs.
    ids = first_turn.ids[: 3 * UBATCH] + tokens(2 * UBATCH + 5, seed=3)
    second_turn = Alone(ids, [UBATCH] * 5 + [5])
    opened = open_tail(link, 4, keys_of(ids), sequence=2)
    assert (opened.rows, opened.states) == (72, (24, 48, 72))
    with pytest.raises(UnknownPage):
        link.exchange(first_turn.chunk(first_turn.steps[-1], 4))
    for step in second_turn.steps[3:]:
        check(link.exchange(second_turn.chunk(step, 4, sequence=2)), step, 4)


def test_a_host_that_comes_back_goes_on_where_it_was(server: WorkerServer) -> None:
    host = alone(seed=4)
    until(lambda: server._serving is None)
    link = greeted(server)
    open_tail(link, 4, keys_of(host.ids))
    for step in host.steps[:3]:
        link.exchange(host.chunk(step, 4, keep=step.end == 48))
    link.close()
    until(lambda: server._serving is None)
    link = greeted(server)
    with pytest.raises(UnknownPage):  # the sequence ended with its link
        link.exchange(host.chunk(host.steps[3], 4))
    opened = open_tail(link, 4, keys_of(host.ids), sequence=9)
    assert (opened.rows, opened.states) == (72, (48, 72))
    for step in host.steps[3:]:
        check(link.exchange(host.chunk(step, 4, sequence=9)), step, 4)
    link.close()


def test_a_rewind_to_a_kept_state_and_to_the_start(link: Link) -> None:
    host = alone(seed=5)
    open_tail(link, 2)
    for step in host.steps[:4]:
        link.exchange(host.chunk(step, 2, keep=step.end == 48))
    for position, index in ((48, 2), (0, 0)):
        assert link.exchange(m.TailRewind(1, position)) == m.Ok()
        for step in host.steps[index:]:
            check(link.exchange(host.chunk(step, 2)), step, 2)
    with pytest.raises(BadRequest, match="has 145 rows"):
        link.exchange(m.TailRewind(1, 146))
    assert link.exchange(m.TailRewind(1, host.steps[-1].end)) == m.Ok()  # where it stands


def test_only_the_newest_states_are_kept(link: Link) -> None:
    host = alone(seed=5, lengths=(UBATCH,) * (KEPT_MAX + 2))
    open_tail(link, 6)
    for step in host.steps:
        link.exchange(host.chunk(step, 6))
    opened = open_tail(link, 6, keys_of(host.ids))
    assert opened.states == tuple(UBATCH * i for i in range(3, KEPT_MAX + 3))


def test_a_rewind_without_kept_states_needs_them_put(link: Link) -> None:
    host = alone(seed=6)
    step = host.steps[2]
    for first in (0, 4):
        open_tail(link, first)
        for before in host.steps[:2]:
            link.exchange(host.chunk(before, first, keep=False))
        link.exchange(host.chunk(step, first, keep=False))
        link.exchange(m.TailRewind(1, step.position))
        kept = host.steps[1].states
        for layer in kept:
            if layer >= first:
                assert link.exchange(m.PutState(1, layer, step.position, *kept[layer])) == m.Ok()
        check(link.exchange(host.chunk(step, first)), step, first)
        link.exchange(m.TailRewind(1, step.position))
        with pytest.raises(BadRequest, match="is missing"):
            link.exchange(host.chunk(step, first))


def test_rows_and_states_of_the_host_make_a_tail_that_goes_on(link: Link) -> None:
    host = alone(seed=7)
    step = host.steps[4]
    open_tail(link, 2, keys_of(host.ids))
    for layer in ATTENTION:
        for start, stop in ((0, 50), (50, step.position)):
            assert link.exchange(m.PutRows(1, layer, start, *host.rows(layer, start, stop))) == m.Ok()
    for layer in set(range(2, LAYERS)) - set(ATTENTION):
        link.exchange(m.PutState(1, layer, step.position, *host.steps[3].states[layer]))
    for step in host.steps[4:]:
        check(link.exchange(host.chunk(step, 2)), step, 2)
    assert open_tail(link, 2, keys_of(host.ids)).rows == 96, "rows that were put are found by their keys"


def test_what_does_not_fit_the_model_is_refused_and_changes_nothing(link: Link) -> None:
    host = alone(seed=8)
    open_tail(link, 4)
    k, v = host.rows(7, 0, 10)
    conv, recurrent = host.steps[0].states[4]
    for wrong in (
        m.PutRows(1, 3, 0, k, v),
        m.PutRows(1, 4, 0, k, v),
        m.PutRows(1, 7, 1, k, v),
        m.PutRows(1, 7, 0, k[:1], v[:1]),
        m.PutRows(1, 7, 0, k.astype(np.float16), v.astype(np.float16)),
        m.PutState(1, 7, 0, conv, recurrent),
        m.PutState(1, 3, 0, conv, recurrent),
        m.PutState(1, 4, 0, conv[:, :1], recurrent),
        m.PutState(1, 4, 0, conv, recurrent.astype(np.float16)),
        m.GetState(1, 3, 24),
        m.GetState(1, 4, 0),
        m.NamePages(1, (b"k" * 32,)),
        m.TailOpen(1, 4, LAYERS + 1, False, b"", UBATCH, ()),
        m.TailOpen(1, 4, 4, False, b"", UBATCH, ()),
        m.TailOpen(1, 4, 6, True, b"", UBATCH, ()),
        m.TailOpen(1, 4, LAYERS, True, fingerprint(4), 2**31 - 1, ()),
    ):
        with pytest.raises(BadRequest):
            link.exchange(wrong)
    check(link.exchange(host.chunk(host.steps[0], 4)), host.steps[0], 4)


def test_deferred_states_come_layer_by_layer_and_before_the_acknowledgement(link: Link) -> None:
    host = alone(seed=9)
    step = host.steps[1]
    open_tail(link, 2)
    link.exchange(host.chunk(host.steps[0], 2))
    order: list[int] = []
    deliver = link._deliver

    def watched(tag: int, message: m.Message) -> None:
        order.append(tag)
        deliver(tag, message)

    link._deliver = watched
    tags = {layer: link.post(m.GetState(1, layer, step.end)) for layer in reversed(range(2, LAYERS))}
    chunk = link.post(host.chunk(step, 2))
    check(link.wait(chunk), step, 2)
    assert order == [tags[layer] for layer in range(2, LAYERS)]
    for layer, tag in tags.items():
        reply = link.wait(tag)
        expected = step.rows[layer] if layer in ATTENTION else step.states[layer]
        assert equal(reply.first, expected[0])
        assert equal(reply.second, expected[1])
    # At the position where it stands, both are answered at once.
    assert equal(link.exchange(m.GetState(1, 4, step.end)).second, step.states[4][1])
    assert equal(link.exchange(m.GetState(1, 3, step.end)).first, step.rows[3][0])
    assert equal(link.exchange(m.GetState(1, 4, host.steps[0].end)).second, host.steps[0].states[4][1])


def test_a_state_that_no_chunk_leaves_is_refused_when_the_tail_has_passed_it(link: Link) -> None:
    host = alone(seed=9)
    open_tail(link, 4)
    between, beyond = (link.post(m.GetState(1, 4, position)) for position in (10, 30))
    check(link.exchange(host.chunk(host.steps[0], 4)), host.steps[0], 4)
    with pytest.raises(BadRequest, match="no chunk ended there"):
        link.wait(between)
    open_tail(link, 4)
    with pytest.raises(BadRequest, match="opened anew"):
        link.wait(beyond)


def test_a_broken_chunk_fails_alone_and_a_fresh_tail_works(link: Link, monkeypatch) -> None:
    host = alone(seed=10)
    open_tail(link, 4, keys_of(host.ids))
    link.exchange(host.chunk(host.steps[0], 4))
    waiting = link.post(m.GetState(1, 5, 48))
    with pytest.raises(BadRequest, match="24 rows are stored"):
        link.exchange(host.chunk(host.steps[2], 4))
    with pytest.raises(BadRequest, match="the tail failed"):
        link.wait(waiting)
    with pytest.raises(UnknownPage):
        link.exchange(host.chunk(host.steps[1], 4))
    opened = open_tail(link, 4, keys_of(host.ids))
    assert opened.rows == 0, "a broken mirror is not found again"
    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "run", lambda *_: 1 / 0)
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            link.exchange(host.chunk(host.steps[0], 4))
    for wrong in (
        {"residual": host.steps[0].residuals[4][:, :64]},
        {"residual": np.zeros((3, 192), np.float16)},
    ):
        open_tail(link, 4)
        with pytest.raises(BadRequest, match="a residual"):
            link.exchange(host.chunk(host.steps[0], 4, **wrong))
    open_tail(link, 4)
    for step in host.steps:
        check(link.exchange(host.chunk(step, 4)), step, 4)


def test_another_model_is_a_mismatch_and_no_model_is_said(link: Link) -> None:
    with pytest.raises(Mismatch, match=rf"{bytes(4).hex()}.* this worker's tiny {fingerprint(4).hex()[:12]}"):
        link.exchange(m.TailOpen(1, 4, LAYERS, True, bytes(32), UBATCH, ()))
    with serving() as bare:
        other = link_to(bare)
        welcome = greet(other, tiny().model.geometry(PAGE), ATTENTION, b"model", BEST_ENGINE)
        assert welcome.layers == 0
        with pytest.raises(NoModel, match="--model"):
            open_tail(other, 4)
        assert other.exchange(m.Ping()).payload is None
        other.close()


def test_pages_of_another_shape_are_a_mismatch() -> None:
    with tail_server() as server:
        link = greeted(server, Geometry(4, 2, 64, PAGE, "float16", 0.125))
        with pytest.raises(Mismatch, match="float16"):
            open_tail(link, 4)
        link.close()


def test_named_pages_are_attended_to_without_having_been_sent() -> None:
    host = alone(seed=11)
    model = tiny().model
    geometry = model.geometry(PAGE)
    names = (b"a" * 32, b"b" * 32)
    with tail_server() as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4)
        for step in host.steps[:4]:
            link.exchange(host.chunk(step, 4))
        used = server.store.used_bytes
        assert len(server.store) == 0
        for _ in range(2):  # again changes nothing
            assert link.exchange(m.NamePages(1, names)) == m.Ok()
            assert (len(server.store), server.store.used_bytes) == (2 * len(TAIL), used)
        with pytest.raises(BadRequest, match="another name"):
            link.exchange(m.NamePages(1, names[::-1]))
        assert link.exchange(m.Have(names)).bitmap == b"\x03"
        link.exchange(m.Bind(5, names))
        q = np.random.default_rng(1).standard_normal((4, 3, 64), np.float32)
        reply = link.exchange(m.Attend(5, 7, 0, 2, q))
        engine = make_engine(BEST_ENGINE)
        expected = attend_folded(engine, geometry, q, host.table.layers[7].pages[:2])
        assert equal(reply.o, expected.o)
        assert equal(reply.lse, expected.lse)
        with pytest.raises(BadRequest, match="cannot be dropped"):
            link.exchange(m.DropPages(names))
        # The mirror goes on with the same pages, also when it is cut back into one of them.
        for step in host.steps[4:]:
            check(link.exchange(host.chunk(step, 4, keep=False)), step, 4)
        link.exchange(m.TailRewind(1, 48))
        for step in host.steps[2:]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        assert equal(link.exchange(m.Attend(5, 7, 0, 2, q)).o, expected.o)
        link.close()


def test_a_page_that_is_stored_already_takes_the_mirrors_place() -> None:
    host = alone(seed=11)
    name = b"a" * 32
    with tail_server() as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4)
        for step in host.steps[:2]:
            link.exchange(host.chunk(step, 4))
        link.exchange(m.PutPage(name, 7, 0, *host.rows(7, 0, PAGE)))
        page_bytes = server.store._engine.page_bytes(tiny().model.geometry(PAGE))
        assert server.store.used_bytes == (2 * len(TAIL) + 1) * page_bytes
        link.exchange(m.NamePages(1, (name,)))
        assert server.store.used_bytes == 2 * len(TAIL) * page_bytes
        for step in host.steps[2:]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        with pytest.raises(BadRequest, match="cannot be dropped"):
            link.exchange(m.DropPages((name,)))
        link.exchange(m.TailRewind(1, 0))
        link.exchange(m.DropPages((name,)))
        assert server.store.used_bytes == 0
        link.close()


def test_a_tail_over_the_budget_is_refused_and_gives_its_memory_back() -> None:
    host = alone(seed=12)
    with tail_server(memory_bytes=3 * len(TAIL) * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        link.exchange(m.PutPage(b"i" * 32, 7, 0, *host.rows(7, 0, PAGE)))  # idle: it gives way
        open_tail(link, 4, keys_of(host.ids))
        for step in host.steps[:4]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        assert len(server.store) == 0
        with pytest.raises(OutOfBudget, match="--memory"):
            link.exchange(host.chunk(host.steps[4], 4))
        assert server.store.used_bytes == 0
        # Another sequence's mirror gives way before one is refused.
        for sequence in (1, 2):
            open_tail(link, 4, sequence=sequence)
            for step in host.steps[:3]:
                check(link.exchange(host.chunk(step, 4, sequence=sequence)), step, 4)
        with pytest.raises(UnknownPage):
            link.exchange(host.chunk(host.steps[3], 4, sequence=1))
        check(link.exchange(host.chunk(host.steps[3], 4, sequence=2)), host.steps[3], 4)
        link.close()


@pytest.mark.parametrize("steps", [2, 3])
def test_a_cut_in_the_middle_of_a_page_needs_no_memory_that_it_does_not_free(steps: int) -> None:
    """The page is written anew. Nothing else would give way, and the mirror would go for want of it."""
    host = alone(seed=12)
    with tail_server(memory_bytes=3 * len(TAIL) * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4)
        for step in host.steps[:4]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        assert server.store.used_bytes == server.store.memory_bytes
        position = host.steps[steps].position
        assert position % PAGE
        link.exchange(m.TailRewind(1, position))
        assert server.store.used_bytes == -(-position // PAGE) * len(TAIL) * PAGE_BYTES
        for step in host.steps[steps:4]:
            check(link.exchange(host.chunk(step, 4)), step, 4)
        link.exchange(m.TailRewind(1, 0))
        assert server.store.used_bytes == 0
        link.close()


def put_page(link: Link, host: Alone, name: bytes) -> m.PageAck:
    return link.exchange(m.PutPage(name * 32, 7, 0, *host.rows(7, 0, PAGE)))


@contextmanager
def held_up_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Chunks begin, which the event tells, and go on when the context ends."""
    running, go_on = threading.Event(), threading.Event()
    run = Mirror.run

    def held_up(*args):
        running.set()
        assert go_on.wait(20)
        return run(*args)

    monkeypatch.setattr(Mirror, "run", held_up)
    try:
        yield running
    finally:
        go_on.set()


def test_a_mirror_gives_way_to_pages_but_never_the_one_of_a_running_read(monkeypatch) -> None:
    host = alone(seed=12)
    mirrored = 3 * len(TAIL)  # pages of one
    names = [bytes([65 + i]) for i in range(mirrored + 1)]
    with tail_server(memory_bytes=(2 * mirrored + 1) * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        for sequence in (1, 2):
            open_tail(link, 4, sequence=sequence)
            for step in host.steps[:3]:
                check(link.exchange(host.chunk(step, 4, sequence=sequence)), step, 4)
        put_page(link, host, names[0])
        link.exchange(m.Bind(5, (names[0] * 32,)))  # an idle page would give way before
        assert server.store.used_bytes == server.store.memory_bytes
        with held_up_chunks(monkeypatch) as running:
            chunk = link.post(host.chunk(host.steps[3], 4, sequence=2))
            assert running.wait(20)
            for name in names[1:]:
                put_page(link, host, name)
            link.exchange(m.Bind(5, [name * 32 for name in names]))
            with pytest.raises(OutOfBudget):
                put_page(link, host, b"z")
        check(link.wait(chunk), host.steps[3], 4)
        with pytest.raises(UnknownPage):
            link.exchange(host.chunk(host.steps[3], 4, sequence=1))
        assert server.store.used_bytes == server.store.memory_bytes
        link.close()


def test_a_mirror_that_somebody_waits_for_does_not_give_way() -> None:
    host = alone(seed=12)
    part = host.steps[1].residuals[4][:6]
    with tail_server(memory_bytes=2 * len(TAIL) * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        waiting = {}
        for sequence in (1, 2):
            open_tail(link, 4, sequence=sequence)
            link.exchange(host.chunk(host.steps[0], 4, sequence=sequence))
            waiting[sequence] = link.post(m.GetState(sequence, 4, 30))
        with pytest.raises(OutOfBudget):
            put_page(link, host, b"a")
        for sequence, tag in waiting.items():
            link.exchange(host.chunk(host.steps[1], 4, sequence=sequence, residual=part, key=None))
            assert isinstance(link.wait(tag), m.StateReply)
        put_page(link, host, b"a")
        with pytest.raises(UnknownPage):
            link.exchange(m.TailRewind(1, 0))
        assert link.exchange(m.TailRewind(2, 0)) == m.Ok()
        link.close()


def test_mirrors_of_a_host_that_left_are_free_for_the_next_ones_pages() -> None:
    host = alone(seed=12)
    mirrored = 3 * len(TAIL)  # pages
    with tail_server(memory_bytes=mirrored * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4, keys_of(host.ids))
        for step in host.steps[:4]:
            link.exchange(host.chunk(step, 4))
        link.exchange(m.NamePages(1, (b"n" * 32,)))
        link.close()
        until(lambda: server._serving is None)
        link = link_to(server)
        welcome = greet(link, tiny().model.geometry(PAGE), (7,), b"model", BEST_ENGINE)
        assert welcome.free_bytes == welcome.memory_bytes
        assert open_tail(link, 4, keys_of(host.ids)).rows == 96, "as long as nobody wants its memory"
        link.close()
        until(lambda: server._serving is None and not server._tail._sequences)
        link = greeted(server, layers=(7,))
        names = [bytes([65 + i]) for i in range(mirrored)]
        for name in names:
            put_page(link, host, name)
        link.exchange(m.Bind(5, [name * 32 for name in names]))
        assert server.store.used_bytes == server.store.memory_bytes
        assert open_tail(link, 4, keys_of(host.ids)).rows == 0
        link.close()


def test_rows_that_do_not_fit_leave_no_half_of_them_behind() -> None:
    host = alone(seed=12)
    with tail_server(memory_bytes=2 * PAGE_BYTES) as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4)
        with pytest.raises(OutOfBudget):
            link.exchange(m.PutRows(1, 7, 0, *host.rows(7, 0, 3 * PAGE)))
        assert server.store.used_bytes == 0
        with pytest.raises(UnknownPage):
            link.exchange(host.chunk(host.steps[0], 4))
        link.close()


def test_the_least_recently_used_mirror_goes(link: Link) -> None:
    hosts = [alone(seed=seed) for seed in (20, 21, 22)]
    for sequence in (0, 1):
        open_tail(link, 4, keys_of(hosts[sequence].ids), sequence)
        link.exchange(hosts[sequence].chunk(hosts[sequence].steps[0], 4, sequence=sequence))
    link.exchange(hosts[0].chunk(hosts[0].steps[1], 4, sequence=0))
    open_tail(link, 4, keys_of(hosts[2].ids), 2)
    assert open_tail(link, 4, keys_of(hosts[0].ids), 0).rows == 48
    assert open_tail(link, 4, keys_of(hosts[1].ids), 1).rows == 0


def test_rows_after_an_unnamed_end_are_not_found(link: Link) -> None:
    ids = tokens(4 * UBATCH, seed=23)
    host = Alone(ids, [UBATCH, 10, UBATCH - 10, UBATCH])
    open_tail(link, 4, keys_of(ids))
    for step in host.steps:
        link.exchange(host.chunk(step, 4, key=key(ids[: step.end]) if step.end in (24, 72) else None))
    opened = open_tail(link, 4, keys_of(ids))
    assert (opened.rows, opened.states) == (24, (24,))


def test_questions_about_pages_are_answered_while_a_chunk_runs(monkeypatch) -> None:
    host = alone(seed=13)
    with tail_server() as server:
        link = greeted(server, layers=(7,))
        open_tail(link, 4)
        put_page(link, host, b"a")
        link.exchange(m.Bind(5, (b"a" * 32,)))
        with held_up_chunks(monkeypatch) as running:
            chunk = link.post(host.chunk(host.steps[0], 4))
            assert running.wait(20)
            reply = link.exchange(m.Attend(5, 7, 0, 1, np.ones((4, 1, 64), np.float32)))
            assert reply.o.shape == (4, 1, 64)
        check(link.wait(chunk), host.steps[0], 4)
        link.close()


def test_a_host_that_leaves_while_something_waits_leaves_a_worker_that_works(server: WorkerServer) -> None:
    host = alone(seed=14)
    until(lambda: server._serving is None)
    link = greeted(server)
    open_tail(link, 4)
    link.post(m.GetState(1, 5, 24))
    link.exchange(host.chunk(host.steps[0], 4, sequence=1, position=0))
    link.post(m.GetState(1, 5, 48))
    link.close()
    until(lambda: server._serving is None)
    link = greeted(server)
    until(lambda: not server._tail._waiting)
    open_tail(link, 4)
    check(link.exchange(host.chunk(host.steps[0], 4)), host.steps[0], 4)
    link.close()
    until(lambda: server._serving is None)


def test_only_the_layers_asked_for_are_in_memory() -> None:
    for part, others in (
        (Part(4, LAYERS, True), {"embed_tokens", "norm"}),
        (Part(5, 7, False), set()),
        (Part(0, 3, False), {"embed_tokens"}),
    ):
        model = load("tiny", TINY, part=part).model
        names = [name for name, _ in tree_flatten(model.raw.parameters())]
        layers = {int(name.split(".layers.")[1].split(".")[0]) for name in names if ".layers." in name}
        assert layers == set(range(part.first, part.stop))
        assert {name.split(".")[-2] for name in names if ".layers." not in name} == others
        assert model.geometry(PAGE) == tiny().model.geometry(PAGE)


def test_reading_more_layers_gives_up_the_model_that_had_fewer() -> None:
    host = alone(seed=16)
    with tail_server() as server:
        link = greeted(server)
        open_tail(link, 4, keys_of(host.ids))
        link.exchange(host.chunk(host.steps[0], 4))
        small = weakref.ref(server._tail._model)
        open_tail(link, 2, sequence=2)
        link.exchange(host.chunk(host.steps[0], 2, sequence=2))
        assert small() is None, "the mirror that is left needs its rows and states alone"
        assert open_tail(link, 4, keys_of(host.ids)).rows == UBATCH
        check(link.exchange(host.chunk(host.steps[1], 4)), host.steps[1], 4)
        link.close()


def test_a_layers_fingerprint_is_of_these_layers_alone() -> None:
    names = {
        fingerprint(first, stop, head)
        for first, stop, head in (
            (0, LAYERS, True),
            (4, LAYERS, True),
            (4, LAYERS, False),
            (5, LAYERS, False),
            (4, 7, False),
        )
    }
    assert len(names) == 5


def test_a_worker_process_runs_layers_too() -> None:
    host = alone(seed=15)
    worker = LoopbackWorker(2**28, model="tiny", slowdown=1.5)
    try:
        link = worker.connector(BEST_ENGINE)()
        welcome = greet(link, tiny().model.geometry(PAGE), ATTENTION, b"model", BEST_ENGINE)
        assert welcome.layers == LAYERS
        link.exchange(m.TailOpen(1, 4, LAYERS, True, fingerprint(4), UBATCH, ()), 60.0)
        start = time.perf_counter()
        ack = link.exchange(host.chunk(host.steps[0], 4))
        assert ack.seconds <= time.perf_counter() - start
        check(ack, host.steps[0], 4)
        link.close()
    finally:
        worker.close()


def test_bfloat16_travels_as_its_bits() -> None:
    bits = np.random.default_rng(1).integers(0, 2**15, (3, 4), np.uint16)
    there = from_numpy(bits, mx.bfloat16)
    assert there.dtype == mx.bfloat16
    assert np.array_equal(to_numpy(there), bits)
    assert numpy_dtype(mx.bfloat16) == np.uint16
