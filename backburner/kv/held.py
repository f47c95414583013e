"""One sequence's old pages: which worker or spill file has each, and attention over all of them as one partial."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.errors import BackburnerError, OutOfBudget, RemoteError, TransportError, WorkerLost
from backburner.kv.dealing import deal
from backburner.kv.mover import MOVE_DEADLINE_S, PIECE_BYTES, LayersOfPage, Moves
from backburner.kv.pages import PageTable
from backburner.kv.question import HeldQuestion, PageConnection, Segment
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.transport.messages import (
    Bind,
    GetPage,
    NamePages,
)
from backburner.transport.replies import checked_tensor

log = logging.getLogger("backburner.kv")

# The host may run this far past its window before it waits for the worker: one page is what is always on its way.
OVERDUE_PAGES = 1

# How often a wait for the spill's writer looks again.
SPILL_POLL_S = 0.005


class PageWorker(Protocol):
    """A worker as a sequence sees it: there or away."""

    @property
    def connection(self) -> PageConnection | None:
        """None while it is away. A new object after each time it was."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of all layers that it had room for when it was greeted; what has gone there since is still counted."""
        ...

    @property
    def weight(self) -> float:
        """How fast it attends, relative to other workers."""
        ...


class _Share:
    """What one worker has of one sequence."""

    def __init__(self, worker: int, connection: PageConnection, sequence: int) -> None:
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

    @property
    def idle(self) -> bool:
        """It takes more, and nothing is on its way there."""
        return self.takes_more and self.moves.bound == len(self.pages)


@dataclass(frozen=True, slots=True)
class MirroredPages:
    """Leading pages that a worker's tail has at its layers, because it computed them in a split read."""

    worker: int
    sequence: int  # the tail's number
    pages: int


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
        make_room: Callable[[PageTable, int], bool] = lambda table, worker: False,
    ) -> None:
        """new_id: numbers for sequences that no worker has heard before. make_room: called with a table and a worker
        that has no room for its pages; True if something was given up there, so that it is worth asking again."""
        self._workers = tuple(workers)
        self._residency = residency
        self._spill = spill
        self._engine = engine
        self._geometry = geometry
        self._new_id = new_id
        self._overdue_pages = overdue_pages
        self._make_room = make_room
        self._shares: dict[int, _Share] = {}  # by worker
        self._plan: list[int | None] = []  # by page: its worker, None: nobody's; here, or in the spill alone
        self._slots: list[int] = []  # by offered page: where it stands in its worker's list
        self._keys: list[bytes] = []  # of offered pages
        self.mirror: MirroredPages | None = None

    @property
    def refused(self) -> str | None:
        """Why no worker takes more of this sequence's pages, or None."""
        refusals = [share.moves.refused for share in self._shares.values() if share.moves.refused]
        return f"{refusals[0].code}: {refusals[0]}" if refusals else None

    def held_on(self, worker: int, count: int) -> int:
        """Of the first `count` pages, those that this worker answers for; the spill does for what nobody else does."""
        shares = [self._bound(page) for page in range(count)]
        return sum(share is self._shares.get(worker) for share in shares if share is not None)

    def occupies(self, worker: int) -> bool:
        """Whether a worker keeps pages because of this sequence."""
        share = self._shares.get(worker)
        return share is not None and share.alive and share.moves.bound > 0

    def missing(self, count: int) -> int | None:
        """The first of the first `count` pages that nobody can answer for now, or None."""
        return next((p for p in range(count) if self._bound(p) is None and not self._has_copy(p)), None)

    def check(self, count: int) -> None:
        """Raises WorkerLost when some of the first `count` pages are nowhere any more."""
        page = self.missing(count)
        if page is not None:
            raise _lost(self._why_lost(page))

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, layer: int, count: int, q: npt.NDArray[Any]) -> HeldQuestion:
        """Sends one query block [q_heads, T, head_dim] for the first `count` pages of a layer; returns at once."""
        segments: list[Segment] = []
        last: _Share | None = None
        for page in range(count):
            share = self._bound(page)
            follows = share is None or self._slots[page] == self._slots[page - 1] + 1
            if segments and share is last and follows:
                segments[-1].stop = page + 1
            elif share is None:
                segments.append(Segment(page, page + 1))
            else:
                first, sequence = self._slots[page], share.moves.sequence
                segments.append(Segment(page, page + 1, share.connection, sequence, first))
            last = share

        def spilled(start: int, stop: int) -> list[Any]:
            pages = [self._spilled(page, layer) for page in range(start, stop)]
            assert self._spill is not None, "it has just given pages"
            self._spill.partials += 1
            return pages

        question = HeldQuestion(self._engine, self._geometry, layer, q, segments, spilled)
        question.post()
        return question

    def _bound(self, page: int) -> _Share | None:
        """The share that answers for a page now."""
        worker = self._plan[page]
        share = self._shares.get(worker) if worker is not None else None
        if share is None or not share.alive or self._slots[page] >= share.moves.bound:
            return None
        return share

    def _has_copy(self, page: int) -> bool:
        return self._spill is not None and self._spill.written(self._keys[page])

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
        self._ask_again(table)
        self.renew(table)
        self._put_in_order(table)
        self._place(table)
        self._offer(table, expected_tokens)
        policy = self._residency
        deadline = time.monotonic() + MOVE_DEADLINE_S
        while True:
            secured = self._secured(table)
            overdue = policy.overdue(table.tokens, secured) - self._overdue_pages
            for page in range(secured, min(secured + overdue, len(self._keys))):
                self._wait(page, deadline)
            if overdue <= 0 or not self._ask_again(table):
                break
            self._place(table)  # what was refused meanwhile
        table.drop_to(policy.droppable(table.tokens, self._secured(table)))

    def _ask_again(self, table: PageTable) -> bool:
        """Where there was no room for pages, others' or a tail may give way to them; else they are nobody's, as are
        those of a worker that is away. False if there are none."""
        changed = False
        for share in list(self._shares.values()):
            if self._workers[share.worker].connection is None and self._other_worker() is not None:
                changed |= self._take_back(share, {page for page in share.pages if page >= table.held})
                continue
            if share.moves.refused is None or not share.alive:
                continue
            no_room = isinstance(share.moves.refused, OutOfBudget)
            if no_room and self._make_room(table, share.worker):
                self._rebind(table, share)  # what is bound may be nowhere else
                changed = True
            else:
                # Those that only this worker may still have stay its own.
                waiting = share.pages[share.moves.bound :]
                elsewhere = {page for page in waiting if page >= table.held or self._has_copy(page)}
                changed |= self._take_back(share, elsewhere)
        return changed

    def retry(self, table: PageTable) -> None:
        """For a new request: what a worker has refused in an earlier one it may take by now."""
        for share in self._shares.values():
            if share.moves.refused is not None and share.alive:
                self._rebind(table, share)

    def _take_back(self, share: _Share, pages: set[int]) -> bool:
        """Pages that a worker will not have would never be bound, nor any page after them be dropped."""
        for page in pages:
            self._plan[page] = None
        share.pages = [page for page in share.pages if page not in pages]
        return bool(pages)

    def _place(self, table: PageTable) -> None:
        """Gives pages that are nobody's, because no worker took any when they were due, to one that does now.

        Those that have left the host go one by one: the host may have to wait for any that is due later.
        """
        nobodys = [page for page in range(len(self._keys)) if self._plan[page] is None]
        share = self._other_worker() if nobodys else None
        if share is None:
            return
        for page in nobodys:
            if page >= table.held or (share.idle and self._has_copy(page)):
                self._give(table, share, page)

    def _put_in_order(self, table: PageTable) -> None:
        """Pages that came late stand behind others that follow them: each run of pages is a question of its own."""
        for share in self._shares.values():
            if share.idle and share.pages != sorted(share.pages):
                self._rebind(table, share)

    def renew(self, table: PageTable) -> None:
        """Gives back to workers that have returned what they held; those that still have it say so.

        Waits for what nobody else can answer for. Whether all of it is there again, `check` tells.
        """
        for index, share in self._shares.items():
            connection = self._workers[index].connection
            if connection is None or connection is share.connection:
                continue
            share.connection = connection
            self._offer_anew(table, share)
            needed = [
                n for n, page in enumerate(share.pages) if page < table.held and not self._has_copy(page)
            ]
            if needed:
                connection.mover.wait_bound(share.moves, needed[-1] + 1, MOVE_DEADLINE_S)

    def _offer_anew(self, table: PageTable, share: _Share) -> None:
        share.connection.mover.release(share.moves)
        share.moves = Moves(self._new_id())
        self._set_pages(share, sorted(share.pages))
        for page in share.pages:
            share.connection.mover.offer(share.moves, self._keys[page], self._layers(table, page))

    def _set_pages(self, share: _Share, pages: list[int]) -> None:
        share.pages = pages
        for slot, page in enumerate(pages):
            self._slots[page] = slot

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
                share = self._other_worker()
            if share is None and self._spill is None:
                del self._plan[page:]  # it stays on the host, and so do those after it
                return
            self._keys.append(table.keys[page])
            self._slots.append(0)
            if self._spill is not None:
                self._spill.offer(table.keys[page], list(table.page(page)))
            if share is None:
                self._plan[page] = None
            else:
                self._give(table, share, page)

    def _give(self, table: PageTable, share: _Share, page: int) -> None:
        key = self._keys[page]
        self._plan[page], self._slots[page] = share.worker, len(share.pages)
        share.pages.append(page)
        share.connection.mover.offer(
            share.moves, key, self._layers(table, page), self._names(share.worker, page)
        )

    def _names(self, worker: int, page: int) -> NamePages | None:
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
            self._shares[worker] = _Share(worker, connection, self._new_id())
        return self._shares[worker]

    def _other_worker(self) -> _Share | None:
        """Somebody who takes a page when the one that it was meant for does not."""
        shares = map(self._share, range(len(self._workers)))
        return next((share for share in shares if share is not None and share.takes_more), None)

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
                checked_tensor("rows", reply.k, geometry.dtype, (geometry.kv_heads, rows, geometry.head_dim))
            except (RemoteError, TransportError) as e:
                raise _lost(e) from e
            self._engine.append(page, reply.k, reply.v)
        return page

    def truncate(self, table: PageTable, pages: int) -> None:
        """Forgets all pages but the first `pages`. What was sent stays with the worker as a cache."""
        if self.mirror is not None:
            # Behind them the tail still has rows of the tokens that went: no name of new ones may get those.
            self.mirror = replace(self.mirror, pages=min(self.mirror.pages, pages))
        del self._plan[max(pages, len(self._keys)) :]  # dealt, but not offered yet
        if pages >= len(self._keys):
            return
        if self._spill is not None:
            self._spill.release(self._keys[pages:])
        del self._plan[pages:], self._slots[pages:], self._keys[pages:]
        for share in self._shares.values():
            if any(page >= pages for page in share.pages):
                self._rebind(table, share)

    def _rebind(self, table: PageTable, share: _Share) -> None:
        """Binds what is left of a list, in page order, under a new number before the old list ends: so it stays bound
        all the time. What was on its way is offered again."""
        old, pages = share.moves, len(self._keys)
        bound = old.bound
        kept = sorted(page for page in share.pages[:bound] if page < pages)
        coming = sorted(page for page in share.pages[bound:] if page < pages)
        keys = [self._keys[page] for page in kept]
        share.moves = Moves(self._new_id(), keys=keys, bound=len(kept))
        self._set_pages(share, kept + coming)
        if not share.alive:
            return
        try:
            share.connection.link.exchange(Bind(share.moves.sequence, tuple(keys)))
        except (RemoteError, TransportError) as e:
            log.warning("the worker did not take a list of pages anew: %s", e)
            share.connection.link.close()
            return
        share.connection.mover.release(old)
        for page in coming:
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


def _lost(error: BackburnerError) -> WorkerLost:
    return WorkerLost(
        f"The worker went away while it held part of this conversation: {str(error).rstrip('.')}. "
        "Send the request again; it will be read from the start."
    )
