"""A channel that behaves like a slower cable, for tests and for asking what another cable would give."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition, Event, Thread

from backburner.errors import LinkClosed, LinkTimeout, TransportError
from backburner.transport.channel import Channel
from backburner.transport.frames import Buffer

# What a sender may have out besides what is under way on the cable. Less than a page or a ubatch's residual, so
# that a sender blocks as on a socket, and 17 ms of a 480 Mb/s cable, so that a thread that the system wakes
# late does not leave the cable idle.
BUFFER_BYTES = 1024 * 1024

# Bytes under way are bounded without a bandwidth, too, as if the cable were as quick as memory.
UNLIMITED_BYTES_PER_S = 4e9

# The stream moves in pieces, each once its last byte has arrived: what a cable carries in this time, at most this
# many bytes. The end of every message is on time; what is inside one is late by no more than a piece.
PIECE_S = 1e-3
PIECE_BYTES = 64 * 1024

# What one read of the inner channel or one send to it moves at most.
PUMP_BYTES = 256 * 1024

# For the pumps' own calls: no deadline of a link is longer, so whoever waits gives up before they do.
PUMP_DEADLINE_S = 600.0


class ShapedChannel:
    """Another channel's stream, with at most this bandwidth each way and this much more of a round trip.

    A thread for each direction moves the bytes. They end with `close`: what was sent before it still goes out in
    its time, as from a socket's buffer.
    """

    def __init__(self, channel: Channel, bandwidth_bytes_per_s: float | None, rtt_s: float) -> None:
        self.peer = channel.peer
        self._outgoing = _Lane(self.peer, bandwidth_bytes_per_s, rtt_s / 2)
        self._incoming = _Lane(self.peer, bandwidth_bytes_per_s, rtt_s / 2)
        self._closed = Event()
        for name, target, arguments in (
            ("out", _pump_out, (self._outgoing, channel, self._closed)),
            ("in", _pump_in, (self._incoming, channel)),
        ):
            Thread(target=target, args=arguments, name=f"{name} {self.peer}", daemon=True).start()

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        for part in parts:
            self._outgoing.put(memoryview(part), deadline)
        return sum(map(len, parts))

    def recv_into(self, space: memoryview, deadline: float) -> int:
        return self._incoming.take(space, deadline)

    def close(self) -> None:
        self._outgoing.finish()
        self._incoming.stop()
        self._closed.set()


@dataclass(frozen=True, slots=True)
class _Piece:
    data: memoryview
    arrives_s: float


@dataclass(frozen=True, slots=True)
class _End:
    """How a direction ends. The kind and text of an error: the error itself would hold its frames."""

    arrives_s: float
    kind: type[TransportError] | None = None
    text: str = ""


class _Lane:
    """One direction: the bytes under way, in order, each with the time of its arrival."""

    def __init__(self, peer: str, bandwidth_bytes_per_s: float | None, delay_s: float) -> None:
        rate = bandwidth_bytes_per_s or UNLIMITED_BYTES_PER_S
        self._peer = peer
        self._byte_s = 1 / bandwidth_bytes_per_s if bandwidth_bytes_per_s else 0.0
        self._delay_s = delay_s
        self._window_bytes = BUFFER_BYTES + int(rate * delay_s)
        self._piece_bytes = min(max(int(rate * PIECE_S), 1), PIECE_BYTES)
        self._changed = Condition()  # guards all below
        self._pieces: deque[_Piece] = deque()
        self._held_bytes = 0
        self._free_s = 0.0  # when the last byte so far has left
        self._end: _End | None = None

    def put(self, data: memoryview, deadline: float) -> None:
        """Sends all of the data on its way, waiting for room."""
        with self._changed:
            while data:
                piece = data[: self._piece_bytes]
                while self._end is None and self._held_bytes + len(piece) > self._window_bytes:
                    self._wait_until(deadline, deadline)
                if self._end is not None:
                    self._raise_end(self._end)
                    raise LinkClosed(f"the channel to {self._peer} is closed")
                self._free_s = max(self._free_s, time.monotonic()) + len(piece) * self._byte_s
                self._pieces.append(_Piece(memoryview(bytes(piece)), self._free_s + self._delay_s))
                self._held_bytes += len(piece)
                if len(self._pieces) == 1:  # else the taker waits for an earlier one
                    self._changed.notify_all()
                data = data[len(piece) :]

    def take(self, space: memoryview, deadline: float) -> int:
        """Reads what has arrived, at least one byte; 0 or the error at the end, LinkTimeout at the deadline."""
        with self._changed:
            while (arrives_s := self._next_arrival_s()) > time.monotonic():
                self._wait_until(arrives_s, deadline)
            if not self._pieces:
                assert self._end is not None
                self._raise_end(self._end)
                return 0
            count, now = 0, time.monotonic()
            while count < len(space) and self._pieces and self._pieces[0].arrives_s <= now:
                piece = self._pieces.popleft()
                taken = min(len(piece.data), len(space) - count)
                space[count : count + taken] = piece.data[:taken]
                count += taken
                if taken < len(piece.data):
                    self._pieces.appendleft(_Piece(piece.data[taken:], piece.arrives_s))
            self._held_bytes -= count
            self._changed.notify_all()
            return count

    def finish(self, error: TransportError | None = None) -> None:
        """Takes no more bytes; the end arrives after those that are under way."""
        with self._changed:
            if self._end is None:
                self._set_end(max(self._free_s, time.monotonic()) + self._delay_s, error)

    def stop(self, error: TransportError | None = None) -> None:
        """Ends at once and forgets what is under way."""
        with self._changed:
            self._pieces.clear()
            self._held_bytes = 0
            self._set_end(0.0, error)

    def _set_end(self, arrives_s: float, error: TransportError | None) -> None:
        self._end = _End(arrives_s, type(error), str(error)) if error is not None else _End(arrives_s)
        self._changed.notify_all()

    def _raise_end(self, end: _End) -> None:
        if end.kind is not None:
            raise end.kind(end.text)

    def _next_arrival_s(self) -> float:
        if self._pieces:
            return self._pieces[0].arrives_s
        return self._end.arrives_s if self._end is not None else math.inf

    def _wait_until(self, when: float, deadline: float) -> None:
        """Waits for a change or for the time; LinkTimeout if the deadline has passed."""
        now = time.monotonic()
        if now >= deadline:
            raise LinkTimeout(f"{self._peer} did not move a byte in time")
        self._changed.wait(min(max(min(when, deadline) - now, 0), TIMEOUT_MAX))


def _pump_out(lane: _Lane, channel: Channel, closed: Event) -> None:
    """Hands what has crossed to the inner channel, and closes that when all is out."""
    space = memoryview(bytearray(PUMP_BYTES))
    try:
        while count := lane.take(space, math.inf):
            channel.send([space[:count]], time.monotonic() + PUMP_DEADLINE_S)
    except TransportError as error:
        lane.stop(error)
        # What the peer said before it went may still be on its way in.
        closed.wait()
    channel.close()


def _pump_in(lane: _Lane, channel: Channel) -> None:
    """Starts whatever the inner channel receives on its way to the reader."""
    space = memoryview(bytearray(PUMP_BYTES))
    try:
        while True:
            try:
                count = channel.recv_into(space, time.monotonic() + PUMP_DEADLINE_S)
            except LinkTimeout:
                continue  # an idle peer is the reader's business
            if not count:
                lane.finish()
                return
            # Once closed, what comes is thrown away: a peer that is stuck in sending would never read to our end.
            with contextlib.suppress(LinkClosed):
                lane.put(space[:count], math.inf)
    except TransportError as error:
        lane.finish(error)
