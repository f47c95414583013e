"""One sequence's old pages: which worker or spill file has each, and attention over all of them as one partial."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry, Partial
from backburner.attention.folded import AttentionAhead
from backburner.attention.numpy_engine import widen
from backburner.errors import BackburnerError, RemoteError, TransportError, WorkerLost
from backburner.kv.dealing import deal
from backburner.kv.mover import MOVE_DEADLINE_S, PIECE_BYTES, LayersOfPage, Moves, PageMover
from backburner.kv.pages import PageTable
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.transport.clock import ReplyClock
from backburner.transport.link import Link
from backburner.transport.messages import (
    Attend,
    AttendAhead,
    Bind,
    FoldOnto,
    GetPage,
    Message,
    NamePages,
    PartialReply,
)

log = logging.getLogger("backburner.kv")

# The host may run this far past its window before it waits for the worker: one page is what is always on its way.
OVERDUE_PAGES = 1

# No worker worth waiting for is slower: MLX's plain CPU operators, the slowest engine, reach 4 GFLOP/s.
SLOWEST_FLOP_PER_S = 1e9

# Nor one that takes longer for a token and layer: a tenth of the first Backburner's phone.
SLOWEST_S_PER_TOKEN_LAYER = 3e-3

# Pages from the spill that are open at a time: an engine that copies them (mlx) takes 16.8 MB for each.
SPILLED_PAGES_AT_ONCE = 8

# How often a wait for the spill's writer looks again.
SPILL_POLL_S = 0.005


@dataclass(eq=False, slots=True)
class PageConnection:
    """A worker that is there now: its link, its mover, and how long its partials take."""

    link: Link
    mover: PageMover
    attends: ReplyClock = field(init=False)  # units: FLOP
    chunks: ReplyClock = field(init=False)  # units: tokens times layers

    def __post_init__(self) -> None:
        self.attends = ReplyClock(1 / SLOWEST_FLOP_PER_S, self.link.timeout_s)
        self.chunks = ReplyClock(SLOWEST_S_PER_TOKEN_LAYER, self.link.timeout_s)

    @property
    def alive(self) -> bool:
        return self.mover.error is None and self.link.alive

    @property
    def error(self) -> str:
        """Why it is not alive."""
        return str(self.mover.error or self.link.failure or "the link is closed")


class PageWorker(Protocol):
    """A worker as a sequence sees it: there or away."""

    @property
    def connection(self) -> PageConnection | None:
        """None while it is away. A new object after each time it was."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of all layers that fit beside what is bound there by others."""
        ...

    @property
    def weight(self) -> float:
        """How fast it attends, relative to other workers."""
        ...


class _Share:
    """What one worker has of one sequence."""

    def __init__(self, worker: PageWorker, connection: PageConnection, sequence: int) -> None:
        self.worker = worker
        self.connection = connection
        self.moves = Moves(sequence)
        self.pages: list[int] = []  # page numbers, in the order in which they are bound there

    @property
    def alive(self) -> bool:
        return self.connection.alive

    @property
    def takes_more(self) -> bool:
        return self.alive and self.moves.refused is None


@dataclass(frozen=True, slots=True)
class MirroredPages:
    """Leading pages that a worker's tail has at its layers, because it computed them in a split read."""

    worker: int
    sequence: int  # the tail's number
    pages: int


@dataclass(slots=True)
class _Segment:
    """Consecutive pages that one holder answers for: a worker's share, or (None) the spill."""

    share: _Share | None
    start: int  # page numbers
    stop: int
    tag: int | None = None  # of the message that was posted
    posted_s: float = 0.0


class HeldPages:
    """Moves a sequence's old pages out by the residency policy, and answers for them (`kv.pages.Holder`).

    With a spill, what a lost worker held is attended to from there: slower, the same bits.
    """

    def __init__(
        self,
        workers: Sequence[PageWorker],
        residency: Residency,
        spill: Spill | None,
        engine: AttentionEngine,
        geometry: Geometry,
        new_id: Callable[[], int],
        overdue_pages: int = OVERDUE_PAGES,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """new_id: numbers for sequences that no worker has heard before. make_room: called when a worker refuses a
        page; True if others' pages were given up there, so that it is worth asking again."""
        self._workers = tuple(workers)
        self._residency = residency
        self._spill = spill
        self._engine = engine
        self._geometry = geometry
        self._new_id = new_id
        self._overdue_pages = overdue_pages
        self._make_room = make_room
        self._shares: dict[int, _Share] = {}  # by worker
        self._plan: list[int | None] = []  # by page: its worker, None: the spill alone
        self._slots: list[int] = []  # by offered page: where it stands in its worker's list
        self._keys: list[bytes] = []  # of offered pages
        self.mirror: MirroredPages | None = None

    @property
    def refused(self) -> str | None:
        """Why no worker takes more of this sequence's pages, or None."""
        refusals = [share.moves.refused for share in self._shares.values() if share.moves.refused]
        return refusals[0] if refusals else None

    def held_on(self, worker: int, count: int) -> int:
        """Of the first `count` pages, those that this worker answers for; the spill does for what nobody else does."""
        shares = [self._bound(page) for page in range(count)]
        return sum(share is self._shares.get(worker) for share in shares if share is not None)

    def check(self, count: int) -> None:
        """Raises WorkerLost when some of the first `count` pages are nowhere any more."""
        for page in range(count):
            if self._bound(page) is None and not (self._spill and self._spill.written(self._keys[page])):
                raise _lost(self._why_lost(page))

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, layer: int, count: int, q: npt.NDArray[Any]) -> "_Question":
        """Sends one query block [q_heads, T, head_dim] for the first `count` pages of a layer; returns at once."""
        segments: list[_Segment] = []
        for i in range(count):
            share = self._bound(i)
            if segments and segments[-1].share is share:
                segments[-1].stop = i + 1
            else:
                segments.append(_Segment(share, i, i + 1))
        question = _Question(self, layer, q, segments)
        question.post()
        return question

    def _bound(self, page: int) -> _Share | None:
        """The share that answers for a page now."""
        worker = self._plan[page]
        share = self._shares.get(worker) if worker is not None else None
        if share is None or not share.alive or self._slots[page] >= share.moves.bound:
            return None
        return share

    def _spilled(self, page: int, layer: int) -> Any:
        found = self._spill.page(self._keys[page], layer) if self._spill else None
        if found is None:
            raise _lost(self._why_lost(page))
        return found

    def _why_lost(self, page: int) -> BackburnerError:
        worker = self._plan[page]
        share = self._shares.get(worker) if worker is not None else None
        return TransportError(share.connection.error if share else "its spill copy cannot be read")

    # -- moving ---------------------------------------------------------------------------------------------------

    def settle(self, table: PageTable, expected_tokens: int) -> None:
        """Between two steps: offers pages that will have to go, drops those that have arrived and are past the window.

        `expected_tokens` is what the sequence will reach for certain. Waits when the host is too far past its window.
        Raises WorkerLost when held pages are nowhere any more.
        """
        self._renew(table)
        self._offer(table, expected_tokens)
        policy = self._residency
        secured = self._secured(table)
        overdue = policy.overdue(table.tokens, secured)
        if overdue > self._overdue_pages:
            deadline = time.monotonic() + MOVE_DEADLINE_S
            for page in range(secured, min(secured + overdue - self._overdue_pages, len(self._keys))):
                self._wait(page, deadline)
            secured = self._secured(table)
        table.drop_to(policy.droppable(table.tokens, secured))

    def _renew(self, table: PageTable) -> None:
        """Gives back to workers that have returned what they held; those that still have it say so."""
        for index, share in self._shares.items():
            connection = self._workers[index].connection
            if connection is None or connection is share.connection:
                if share.moves.refused is not None and share.alive and self._make_room():
                    self._shorten(table, share)  # what is bound may be nowhere else
                continue
            share.connection = connection
            self._offer_anew(table, share)
            if self._spill is None:  # nobody else can answer for what is held
                held = sum(page < table.held for page in share.pages)
                connection.mover.wait_bound(share.moves, held, MOVE_DEADLINE_S)

    def _offer_anew(self, table: PageTable, share: _Share) -> None:
        share.connection.mover.release(share.moves)
        share.moves = Moves(self._new_id())
        for page in share.pages:
            share.connection.mover.offer(share.moves, self._keys[page], self._layers(table, page))

    def _layers(self, table: PageTable, page: int) -> LayersOfPage:
        """Gives (layer, page) from the host, else from the spill; nothing when it is in neither, so that only a worker
        that still has the page can take it. Spilled pages are opened when they are sent: some engines copy them."""
        if page >= table.held:
            local = list(table.page(page))
            return lambda: local
        key, spill, numbers = self._keys[page], self._spill, tuple(table.layers)

        def spilled() -> list[tuple[int, Any]]:
            pages = [(layer, spill.page(key, layer)) for layer in numbers] if spill is not None else []
            return pages if all(p is not None for _, p in pages) else []

        return spilled

    def _offer(self, table: PageTable, expected_tokens: int) -> None:
        policy = self._residency
        target = policy.copy_target(table.tokens, expected_tokens)
        if target <= len(self._keys):
            return
        coming = policy.held_target(max(table.tokens, expected_tokens) + policy.page_tokens)
        self._extend_plan(max(target, coming))
        for page in range(len(self._keys), target):
            worker = self._plan[page]
            share = self._share(worker) if worker is not None else None
            if share is None or not share.takes_more:
                worker, share = self._other_worker()
                self._plan[page] = worker
            if share is None and self._spill is None:
                del self._plan[page:]  # it stays on the host, and so do those after it
                return
            layers = list(table.page(page))
            self._keys.append(table.keys[page])
            if self._spill is not None:
                self._spill.offer(table.keys[page], layers)
            if share is None:
                self._slots.append(0)
            else:
                self._slots.append(len(share.pages))
                share.pages.append(page)
                names = self._names(worker, page)
                share.connection.mover.offer(share.moves, table.keys[page], self._layers(table, page), names)

    def _names(self, worker: int | None, page: int) -> NamePages | None:
        """What makes a page's tail layers, which the worker computed itself, pages of its store: born held."""
        mirror = self.mirror
        if mirror is None or mirror.worker != worker or page >= mirror.pages:
            return None
        return NamePages(mirror.sequence, tuple(self._keys[: page + 1]))

    def _extend_plan(self, pages: int) -> None:
        new = pages - len(self._plan)
        if new <= 0:
            return
        takes = [self._takes(i) for i in range(len(self._workers))]
        free = [max(0, w.free_pages - self._plan.count(i)) * takes[i] for i, w in enumerate(self._workers)]
        counts = deal(new, free, [w.weight for w in self._workers])
        for worker, count in enumerate(counts):
            self._plan += [worker] * count
        self._plan += [None] * (pages - len(self._plan))

    def _takes(self, worker: int) -> bool:
        share = self._shares.get(worker)
        return self._workers[worker].connection is not None and (share is None or share.takes_more)

    def _share(self, worker: int) -> _Share | None:
        if worker not in self._shares:
            connection = self._workers[worker].connection
            if connection is None:
                return None
            self._shares[worker] = _Share(self._workers[worker], connection, self._new_id())
        return self._shares[worker]

    def _other_worker(self) -> tuple[int | None, _Share | None]:
        """Somebody who takes a page when the one that it was meant for does not."""
        for worker in range(len(self._workers)):
            share = self._share(worker)
            if share is not None and share.takes_more:
                return worker, share
        return None, None

    def _secured(self, table: PageTable) -> int:
        """How many leading pages the host may forget: held for good somewhere."""
        count = table.held
        while count < len(self._keys) and self._is_secured(count):
            count += 1
        return count

    def _is_secured(self, page: int) -> bool:
        key, spill = self._keys[page], self._spill
        if self._bound(page) is not None:
            return spill is None or spill.written(key) or spill.refused(key)
        worker = self._plan[page]
        if worker is not None and self._shares[worker].takes_more:
            return False  # on its way
        return spill is not None and spill.written(key)

    def _wait(self, page: int, deadline: float) -> None:
        worker = self._plan[page]
        if worker is not None and (share := self._shares[worker]).takes_more:
            left = deadline - time.monotonic()
            share.connection.mover.wait_bound(share.moves, self._slots[page] + 1, left)
        spill, key = self._spill, self._keys[page]
        while spill is not None and not (spill.written(key) or spill.refused(key)):
            if time.monotonic() > deadline:
                return
            time.sleep(SPILL_POLL_S)

    # -- rewinding and ending -------------------------------------------------------------------------------------

    def fetch(self, table: PageTable, page: int) -> None:
        """Brings a held page back to the host at all layers. Raises WorkerLost."""
        for layer, pages in table.layers.items():
            pages.pages[page] = self.copy(layer, page)

    def copy(self, layer: int, page: int) -> Any:
        """A held page of one layer, to read rows from. Raises WorkerLost."""
        copy = self._spill.page(self._keys[page], layer) if self._spill else None
        if copy is not None:
            return copy
        share = self._bound(page)
        if share is None:
            raise _lost(self._why_lost(page))
        return self._fetched(share, self._keys[page], layer)

    def _fetched(self, share: _Share, key: bytes, layer: int) -> Any:
        geometry, page = self._geometry, self._engine.new_page(self._geometry)
        piece = max(1, PIECE_BYTES // geometry.row_bytes)
        for row0 in range(0, geometry.page_tokens, piece):
            rows = min(piece, geometry.page_tokens - row0)
            try:
                reply = share.connection.link.exchange(GetPage(key, layer, row0, rows), MOVE_DEADLINE_S)
            except (RemoteError, TransportError) as e:
                raise _lost(e) from e
            self._engine.append(page, reply.k, reply.v)
        return page

    def truncate(self, table: PageTable, pages: int) -> None:
        """Forgets all pages but the first `pages`. What was sent stays with the worker as a cache."""
        del self._plan[max(pages, len(self._keys)) :]  # dealt, but not offered yet
        if pages >= len(self._keys):
            return
        if self._spill is not None:
            self._spill.release(self._keys[pages:])
        del self._plan[pages:], self._slots[pages:], self._keys[pages:]
        for share in self._shares.values():
            kept = [page for page in share.pages if page < pages]
            if len(kept) < len(share.pages):
                share.pages = kept
                self._shorten(table, share)

    def _shorten(self, table: PageTable, share: _Share) -> None:
        """Binds what is left under a new number before the old list ends: so it stays bound all the time."""
        old, bound = share.moves, min(share.moves.bound, len(share.pages))
        keys = [self._keys[page] for page in share.pages[:bound]]
        share.moves = Moves(self._new_id(), keys=keys, bound=bound)
        if not share.alive:
            return
        try:
            share.connection.link.exchange(Bind(share.moves.sequence, tuple(keys)))
        except (RemoteError, TransportError) as e:
            log.warning("the worker did not shorten a list of pages: %s", e)
            share.connection.link.close()
            return
        share.connection.mover.release(old)
        for page in share.pages[bound:]:  # were on their way
            share.connection.mover.offer(share.moves, self._keys[page], self._layers(table, page))

    def release(self) -> None:
        """The sequence has ended. Its pages stay with the workers as a cache; the spill forgets them."""
        for share in self._shares.values():
            if share.alive:
                share.connection.mover.release(share.moves)
        if self._spill is not None:
            self._spill.release(self._keys)
        self._shares.clear()
        del self._plan[:], self._slots[:], self._keys[:]


class _Question:
    """One query block on its way to all holders of a sequence's old pages."""

    def __init__(self, held: HeldPages, layer: int, q: npt.NDArray[Any], segments: list[_Segment]) -> None:
        self._held = held
        self._layer = layer
        self._q = q
        self._segments = segments

    def post(self) -> None:
        """The first holder folds from nothing; the others compute ahead and get the fold before theirs later."""
        for n, segment in enumerate(self._segments):
            share = segment.share
            if share is None:
                continue
            first = self._held._slots[segment.start]
            ask = Attend if n == 0 else AttendAhead
            share.connection.mover.be_patient(share.connection.attends.deadline_s(self._flop(segment)))
            segment.posted_s = time.monotonic()
            with contextlib.suppress(TransportError):  # `answer` goes another way
                segment.tag = share.connection.link.post(
                    ask(share.moves.sequence, self._layer, first, segment.stop - segment.start, self._q)
                )

    def answer(self) -> Partial:
        """The fold over all held pages. Raises WorkerLost when pages are nowhere any more."""
        folded: Partial | None = None
        for segment in self._segments:
            partial = self._from_worker(segment, folded)
            folded = partial if partial is not None else self._from_spill(segment, folded)
        assert folded is not None, "asked for no page"
        return folded

    def _flop(self, segment: _Segment) -> float:
        pages = segment.stop - segment.start
        return 4.0 * self._q.size * pages * self._held._geometry.page_tokens

    def _from_worker(self, segment: _Segment, before: Partial | None) -> Partial | None:
        share = segment.share
        if share is None or segment.tag is None:
            return None
        connection, tag, flop = share.connection, segment.tag, self._flop(segment)
        segment.tag = None
        deadline_s = connection.attends.deadline_s(flop)
        try:
            reply: Message
            if segment is self._segments[0]:
                reply = connection.link.wait(tag, deadline_s)
                connection.attends.observe(flop, time.monotonic() - segment.posted_s)
            else:
                assert before is not None
                connection.link.wait(tag, deadline_s)
                connection.attends.observe(flop, time.monotonic() - segment.posted_s)
                reply = connection.link.exchange(FoldOnto(tag, before.o, before.lse), deadline_s)
        except (RemoteError, TransportError) as e:
            log.warning("a worker did not answer for held pages: %s", e)
            connection.link.give_up(str(e))
            return None
        assert isinstance(reply, PartialReply)  # the link has checked it
        if reply.o.shape != self._q.shape:
            # Broadcasting would merge it without a word.
            why = f"a partial of shape {reply.o.shape} for a query of {self._q.shape}"
            log.error("%s", why)
            connection.link.give_up(why)
            return None
        return Partial(reply.o, reply.lse)

    def _from_spill(self, segment: _Segment, before: Partial | None) -> Partial:
        held, q = self._held, widen(self._q)
        folded = before
        for start in range(segment.start, segment.stop, SPILLED_PAGES_AT_ONCE):
            stop = min(start + SPILLED_PAGES_AT_ONCE, segment.stop)
            pages = [held._spilled(page, self._layer) for page in range(start, stop)]
            folded = AttentionAhead(held._engine, held._geometry, q, pages).fold(folded)
        assert folded is not None, "a segment has pages"
        if held._spill is not None:
            held._spill.partials += 1
        return folded

    def abandon(self) -> None:
        """Takes the replies off the links, where they would stay for ever."""
        for segment in self._segments:
            tag, segment.tag = segment.tag, None
            if tag is not None and segment.share is not None:
                connection = segment.share.connection
                with contextlib.suppress(BackburnerError):
                    connection.link.wait(tag, connection.attends.deadline_s(self._flop(segment)))


def _lost(error: BackburnerError) -> WorkerLost:
    return WorkerLost(
        f"The worker went away while it held part of this conversation: {str(error).rstrip('.')}. "
        "Send the request again; it will be read from the start."
    )
