"""One query block on its way to whoever holds a sequence's old pages, and the fold of what they answer."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry, Partial
from backburner.attention.folded import AttentionAhead
from backburner.attention.numpy_engine import widen
from backburner.errors import BackburnerError, RemoteError, TransportError
from backburner.kv.mover import PageMover
from backburner.transport.clock import ReplyClock
from backburner.transport.link import Link
from backburner.transport.messages import Attend, AttendAhead, FoldOnto, Message, PartialReply
from backburner.transport.replies import checked_tensor

log = logging.getLogger("backburner.kv")

# No worker worth waiting for is slower: MLX's plain CPU operators, the slowest engine, reach 4 GFLOP/s.
SLOWEST_FLOP_PER_S = 1e9

# Nor one that takes longer for a token and layer: a tenth of the first Backburner's phone.
SLOWEST_S_PER_TOKEN_LAYER = 3e-3

# AttendAheads that a worker is sent of one question before their folds: it keeps four, and in a read two questions are
# on their way. With two it has one to compute while the other is folded.
AHEAD_OF_QUESTION = 2

# Pages from the spill that are open at a time: an engine that copies them (mlx) takes 16.8 MB for each.
SPILLED_PAGES_AT_ONCE = 8


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


@dataclass(slots=True)
class Segment:
    """Consecutive pages that one holder answers for: a worker, or (no connection) the spill."""

    start: int  # page numbers
    stop: int
    connection: PageConnection | None = None
    sequence: int = 0  # its number there
    first: int = 0  # where these pages begin in its list
    tag: int | None = None  # of the message that was posted
    posted_s: float = 0.0


class HeldQuestion:
    """One query block on its way to all holders of a sequence's old pages."""

    def __init__(
        self,
        engine: AttentionEngine,
        geometry: Geometry,
        layer: int,
        q: npt.NDArray[Any],
        segments: Sequence[Segment],
        spilled: Callable[[int, int], Sequence[Any]],
    ) -> None:
        """q: [q_heads, T, head_dim]. spilled(start, stop): pages of the layer from the spill, or WorkerLost."""
        self._engine = engine
        self._geometry = geometry
        self._layer = layer
        self._q = q
        self._segments = tuple(segments)
        self._spilled = spilled
        self._later: list[Segment] = []  # to be computed ahead when their worker has room

    def post(self) -> None:
        """The first holder folds from nothing; the others compute ahead and get the fold before theirs later."""
        first, *others = self._segments
        self._send(first, Attend)
        sent: Counter[PageConnection | None] = Counter()
        for segment in others:
            if sent[segment.connection] < AHEAD_OF_QUESTION:
                sent[segment.connection] += 1
                self._send(segment, AttendAhead)
            else:
                self._later.append(segment)

    def _send_next(self, connection: PageConnection) -> None:
        """A worker has made one fold: it has room for the next of its segments."""
        segment = next((s for s in self._later if s.connection is connection), None)
        if segment is not None:
            self._later.remove(segment)
            self._send(segment, AttendAhead)

    def _send(self, segment: Segment, ask: type[Attend | AttendAhead]) -> None:
        connection = segment.connection
        if connection is None:
            return
        connection.mover.be_patient(connection.attends.deadline_s(self._flop(segment)))
        segment.posted_s = time.monotonic()
        with contextlib.suppress(TransportError):  # `answer` goes another way
            pages = segment.stop - segment.start
            segment.tag = connection.link.post(
                ask(segment.sequence, self._layer, segment.first, pages, self._q)
            )

    def answer(self) -> Partial:
        """The fold over all held pages. Raises WorkerLost when pages are nowhere any more."""
        folded: Partial | None = None
        for segment in self._segments:
            partial = self._from_worker(segment, folded)
            folded = partial if partial is not None else self._from_spill(segment, folded)
        assert folded is not None, "asked for no page"
        return folded

    def _flop(self, segment: Segment) -> float:
        pages = segment.stop - segment.start
        return 4.0 * self._q.size * pages * self._geometry.page_tokens

    def _from_worker(self, segment: Segment, before: Partial | None) -> Partial | None:
        connection, tag, flop = segment.connection, segment.tag, self._flop(segment)
        if connection is None or tag is None:
            return None
        segment.tag = None
        deadline_s = connection.attends.deadline_s(flop)
        try:
            reply: Message = connection.link.wait(tag, deadline_s)
            if before is not None:  # all but the first
                connection.mover.be_patient(deadline_s)  # partials that it could not keep are computed now
                reply = connection.link.exchange(FoldOnto(tag, before.o, before.lse), deadline_s)
            connection.attends.observe(flop, time.monotonic() - segment.posted_s)
            if before is not None:
                self._send_next(connection)
            assert isinstance(reply, PartialReply)  # the link has checked it, and the message its lse
            checked_tensor("a partial", reply.o, "float32", self._q.shape)
        except (RemoteError, TransportError) as e:
            log.warning("a worker did not answer for held pages: %s", e)
            connection.link.give_up(str(e))
            return None
        return Partial(reply.o, reply.lse)

    def _from_spill(self, segment: Segment, before: Partial | None) -> Partial:
        folded, q = before, widen(self._q)
        for start in range(segment.start, segment.stop, SPILLED_PAGES_AT_ONCE):
            stop = min(start + SPILLED_PAGES_AT_ONCE, segment.stop)
            pages = self._spilled(start, stop)
            folded = AttentionAhead(self._engine, self._geometry, q, pages).fold(folded)
        assert folded is not None, "a segment has pages"
        return folded

    def abandon(self) -> None:
        """Takes the replies off the links, where they would stay for ever."""
        for segment in self._segments:
            tag, segment.tag = segment.tag, None
            connection = segment.connection
            if tag is not None and connection is not None:
                with contextlib.suppress(BackburnerError):
                    connection.link.wait(tag, connection.attends.deadline_s(self._flop(segment)))
