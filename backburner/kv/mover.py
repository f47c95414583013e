"""The thread that carries full pages to the worker beside compute, and keeps the idle link's heartbeat."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.errors import (
    BackburnerError,
    LinkTimeout,
    OutOfBudget,
    ProtocolError,
    RemoteError,
    TransportError,
    UnknownPage,
)
from backburner.transport.clock import ReplyClock
from backburner.transport.link import Link
from backburner.transport.messages import Bind, Have, NamePages, PageAck, PutPage, Release, Stats, StatsReply

log = logging.getLogger("backburner.kv")

# A page crosses in pieces, so that a query never waits behind more than one: 1 MiB is 4 ms at the 244 MB/s that the
# first Backburner's link carried, and 0.2 ms on loopback.
PIECE_BYTES = 2**20

# Pieces on their way at once: the next is packed and sent while the worker stores the one before.
PIECES_IN_FLIGHT = 2

# The worker's counters are asked for this often while nothing else is: they are the heartbeat too.
HEARTBEAT_S = 5.0

# How long anybody waits for a page to arrive: 143 MB, the first Backburner's page, are 4 s at USB 2's 35 MB/s.
MOVE_DEADLINE_S = 60.0

# No link worth using is slower; until a piece has been timed.
SLOWEST_BYTES_PER_S = 1e6


@dataclass(eq=False, slots=True)
class Moves:
    """One sequence's pages on their way: the engine thread offers, the mover's thread advances `bound`."""

    sequence: int
    keys: list[bytes] = field(default_factory=list)  # offered, oldest first
    bound: int = 0  # leading pages that the worker has, complete at all layers, and has bound
    refused: RemoteError | None = None  # why the worker takes no more
    ended: bool = False


# Gives (layer, page) for each attention layer, or nothing when nobody here has the page.
LayersOfPage = Callable[[], Sequence[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class _Job:
    """What the mover's thread does next: one page of a sequence, or (index None) the end of the sequence."""

    moves: Moves
    index: int | None
    layers: LayersOfPage = list
    names: NamePages | None = None  # for a tail at this worker that has some layers of the page already


class PageMover:
    """Owns no page: it reads full ones, which never change, and reports what has been acknowledged."""

    def __init__(
        self,
        link: Link,
        engine: AttentionEngine,
        geometry: Geometry,
        layers: int,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """layers: how many attention layers a page has."""
        self._link = link
        self._engine = engine
        self._layers = layers
        self._geometry = geometry
        self._heartbeat_s = heartbeat_s
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._patient_until = 0.0
        self._pieces = ReplyClock(1 / SLOWEST_BYTES_PER_S, link.timeout_s)  # units: bytes
        self._questions = ReplyClock(0.0, link.timeout_s)
        self._last_contact = time.monotonic()
        self._naming = False
        self.error: TransportError | None = None
        self.stats: StatsReply | None = None  # the worker's latest counters
        self.moved_pages = 0  # (key, layer) pages sent
        self.found_pages = 0  # pages that the worker had already
        self._thread = threading.Thread(target=self._main, name="mover", daemon=True)
        self._thread.start()

    def be_patient(self, seconds: float) -> None:
        """The worker was asked for something that may take so long; it answers in order, so others wait behind it."""
        self._patient_until = max(self._patient_until, time.monotonic() + seconds)

    def _patience_s(self) -> float:
        return max(0.0, self._patient_until - time.monotonic())

    def offer(self, moves: Moves, key: bytes, layers: LayersOfPage, names: NamePages | None = None) -> None:
        """Queues the sequence's next full page. `layers` is called only if the worker does not have all of it.

        names: what to say to the worker first, so that layers which it has made itself need not cross.
        """
        with self._changed:
            moves.keys.append(key)
            if self.error is None:
                self._jobs.append(_Job(moves, len(moves.keys) - 1, layers, names))
            self._changed.notify_all()

    def wait_bound(self, moves: Moves, count: int, timeout_s: float) -> bool:
        """Waits until `count` leading pages are bound. False when the deadline, a refusal or a lost link came first.

        Whoever waits here asks the worker nothing meanwhile, so that it has only pieces and names to answer: when it is
        silent for longer than these may take, it is gone.
        """
        begun = time.monotonic()
        deadline = begun + timeout_s
        with self._changed:
            while moves.bound < count and moves.refused is None and self.error is None:
                now = time.monotonic()
                silent = max(begun, self._last_contact) + self._silence_s()
                if now >= silent:
                    self._fail(LinkTimeout(f"{self._link.peer} has stopped taking pages."))
                    self._link.close()  # wakes the mover's thread
                elif now >= deadline:
                    break
                else:
                    self._changed.wait(min(silent, deadline) - now)
            return moves.bound >= count

    def _silence_s(self) -> float:
        """How long a worker that is there may say nothing."""
        return MOVE_DEADLINE_S if self._naming else self._pieces.deadline_s(PIECE_BYTES)

    def release(self, moves: Moves) -> None:
        """The sequence has ended: what is still queued is dropped, what was sent stays with the worker as a cache."""
        with self._changed:
            moves.ended = True
            self._jobs.append(_Job(moves, None))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=self._link.timeout_s + 1)

    def _main(self) -> None:
        try:
            while (job := self._next()) is not None:
                moves = job.moves
                try:
                    if job.index is None:
                        self._exchange(Release(moves.sequence))
                    elif not moves.ended and moves.refused is None:
                        self._move(moves, job.index, job)
                except RemoteError as e:
                    if job.index is None:
                        log.error("the worker did not let go of a sequence that has ended: %s", e)
                    else:
                        self._refuse(moves, e)
                if not self._jobs:
                    self._ask_stats()
        except TransportError as e:
            self._fail(e)
        except BackburnerError as e:
            self._fail(TransportError(str(e)))
        except Exception as e:  # a fault of ours must not leave the engine waiting for pages that never come
            log.exception("the mover has failed")
            self._fail(TransportError(f"moving pages failed: {type(e).__name__}: {e}"))
        finally:
            self._engine.leave_thread()

    def _next(self) -> _Job | None:
        """The next job; while there is none, a heartbeat now and then. None when closing."""
        while True:
            with self._changed:
                if self._closing:
                    return None
                if self._jobs:
                    return self._jobs.popleft()
                due_s = self._last_contact + self._heartbeat_s - time.monotonic()
                if due_s > 0:
                    self._changed.wait(due_s)
                    continue
            self._ask_stats()

    def _ask_stats(self) -> None:
        self.stats = self._exchange(Stats())

    def _exchange(self, request: Any) -> Any:
        begun = time.monotonic()
        reply = self._link.exchange(request, self._questions.deadline_s(1) + self._patience_s())
        self._last_contact = time.monotonic()
        if not self._patience_s():
            self._questions.observe(1, self._last_contact - begun)
        return reply

    def _move(self, moves: Moves, index: int, job: _Job) -> None:
        key = moves.keys[index]
        if job.names is not None:
            self._name(job.names)
        if self._has(key, None):
            self.found_pages += self._layers
        else:
            layers = job.layers()
            if not layers:
                raise UnknownPage("the worker has lost a page that nobody else has")
            for layer, page in layers:
                if self._has(key, layer):
                    self.found_pages += 1
                    continue
                self._send(key, layer, page)
                self.moved_pages += 1
        # Bound at once, not when the host drops it: what is bound cannot be evicted for another page.
        self._exchange(Bind(moves.sequence, tuple(moves.keys[: index + 1])))
        with self._changed:
            moves.bound = index + 1
            self._changed.notify_all()

    def _name(self, names: NamePages) -> None:
        """A tail answers between two of its chunks, which may take seconds."""
        self._naming = True
        try:
            self._link.exchange(names, MOVE_DEADLINE_S + self._patience_s())
        except RemoteError as e:  # the tail has been given up since: then all layers cross
            log.info("the worker's tail does not have a page: %s", e)
        finally:
            with self._changed:
                self._last_contact, self._naming = time.monotonic(), False
                self._changed.notify_all()  # from here on, less silence is allowed

    def _has(self, key: bytes, layer: int | None) -> bool:
        bitmap = self._exchange(Have((key,), layer)).bitmap
        if len(bitmap) != 1:
            raise ProtocolError(f"a worker answered for one page in {len(bitmap)} bytes")
        return bool(bitmap[0] & 1)

    def _send(self, key: bytes, layer: int, page: Any) -> None:
        piece_rows = max(1, PIECE_BYTES // self._geometry.row_bytes)
        tags: deque[tuple[int, float]] = deque()  # with the time of sending
        ack: Any = None
        refusal: RemoteError | None = None
        for row0 in range(0, self._geometry.page_tokens, piece_rows):
            k, v = self._engine.rows(page, row0, min(row0 + piece_rows, self._geometry.page_tokens))
            tags.append((self._link.post(PutPage(key, layer, row0, k, v)), time.monotonic()))
            if len(tags) > PIECES_IN_FLIGHT:
                ack, refusal = self._acknowledged(tags, refusal)
            if refusal:
                break
        while tags:
            ack, refusal = self._acknowledged(tags, refusal)
        if refusal:
            raise refusal
        if not (isinstance(ack, PageAck) and ack.complete and (ack.key, ack.layer) == (key, layer)):
            raise TransportError(f"the worker did not complete a page that was sent whole: {ack}")

    def _acknowledged(
        self, tags: deque[tuple[int, float]], refusal: RemoteError | None
    ) -> tuple[Any, RemoteError | None]:
        """Waits for the oldest piece. The first refusal counts; the pieces behind it fail for want of it."""
        try:
            tag, sent_s = tags.popleft()
            ack = self._link.wait(tag, self._pieces.deadline_s(PIECE_BYTES) + self._patience_s())
            self._last_contact = time.monotonic()
            if not self._patience_s():
                self._pieces.observe(PIECE_BYTES, self._last_contact - sent_s)
            return ack, refusal
        except RemoteError as e:
            return None, refusal or e

    def _refuse(self, moves: Moves, error: RemoteError) -> None:
        if isinstance(error, OutOfBudget):
            log.warning(
                "the worker takes no more pages; they go to another one or stay on the host: %s", error
            )
        else:
            log.error(
                "the worker refused a page; it and those after it go to another one or stay on the host: %s",
                error,
            )
        with self._changed:
            moves.refused = error
            self._changed.notify_all()

    def _fail(self, error: TransportError) -> None:
        with self._changed:
            if self.error is not None:
                return  # what came first is the reason
            self.error = error
            self._jobs.clear()  # they hold pages, whose sequence may be gone long before the next link
            self._changed.notify_all()
        if not self._closing:
            log.warning("the worker is lost: %s", error)
