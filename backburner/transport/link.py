"""The host's end of a link: requests out, replies back to whoever waits for them, and a deadline on each."""

import statistics
import time
from dataclasses import dataclass
from itertools import count
from threading import Condition, Lock
from typing import overload

import numpy as np

from backburner.errors import LinkClosed, LinkTimeout, Mismatch, ProtocolError, remote_error
from backburner.transport import messages as m
from backburner.transport.channel import Channel
from backburner.transport.connection import CONNECTION_BODY_MAX, TIMEOUT_S, Connection

# A median of 64 round trips of 16 bytes repeats within 5 % on loopback and takes 6 ms on a 96 us cable. The
# payload is one ubatch's residual (256 tokens of 5,120 in bfloat16), the largest thing a split prefill sends.
PROBE_PINGS = 64
PROBE_BYTES = 16
BULK_PINGS = 5
BULK_BYTES = 256 * 5120 * 2


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What `measure` found. Nothing assumes a cable's nominal speed."""

    rtt_us: float  # median of a 16-byte Ping and its Pong
    p90_us: float
    bytes_per_s: float  # host to worker, bodies of 2.6 MB, the round trip taken off


class Link(Connection):
    """Requests with deadlines over one channel, for any number of threads.

    There is no reader thread. Whoever waits first reads for all: it keeps other threads' replies for them and
    hands the reading on when its own has come. A single thread thus reads its reply itself, without a hop.

    Whatever ends the link ends it for everyone. A missed deadline does, too: the caller has gone
    another way by then, and a late reply must never be taken for a later one.
    """

    def __init__(
        self, channel: Channel, timeout_s: float = TIMEOUT_S, body_max: int = CONNECTION_BODY_MAX
    ) -> None:
        super().__init__(channel, timeout_s, body_max)
        self.exchanges = 0
        self.speed: LinkSpeed | None = None
        self._tags = count()
        self._expected: dict[int, type[m.Message]] = {}  # by tag, of requests whose reply was not yet taken
        self._lock = Lock()  # guards all below
        self._changed = Condition(self._lock)
        self._followers = 0
        self._reading = False
        self._arrived: dict[int, m.Message] = {}

    def post(self, request: m.Message) -> int:
        """Sends a request now and returns the tag to `wait` for.

        Bound what is in flight: a worker whose replies nobody reads reads on only so far.
        """
        tag = next(self._tags) % 0xFFFFFFFF + 1
        self._expected[tag] = m.REPLIES[type(request)]
        try:
            self._send(request, tag)
        except BaseException:
            del self._expected[tag]
            raise
        return tag

    def wait(self, tag: int, timeout_s: float | None = None) -> m.Message:
        """The reply to a posted request. An Error reply raises its RemoteError and leaves the link open."""
        expected = self._expected[tag]
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        try:
            reply = self._collect(tag, deadline)
        finally:
            del self._expected[tag]
        if type(reply) is expected:
            return reply
        if type(reply) is m.Error:
            raise remote_error(reply.code, reply.message)
        error = ProtocolError(f"{self.peer} sent {type(reply).__name__} instead of {expected.__name__}")
        self._fail(error)
        raise error

    @overload
    def exchange(self, request: m.Hello, timeout_s: float | None = None) -> m.Welcome: ...
    @overload
    def exchange(self, request: m.PairKeys, timeout_s: float | None = None) -> m.Paired: ...
    @overload
    def exchange(self, request: m.Ping, timeout_s: float | None = None) -> m.Pong: ...
    @overload
    def exchange(self, request: m.Stats, timeout_s: float | None = None) -> m.StatsReply: ...
    @overload
    def exchange(self, request: m.Have, timeout_s: float | None = None) -> m.HaveReply: ...
    @overload
    def exchange(self, request: m.PutPage, timeout_s: float | None = None) -> m.PageAck: ...
    @overload
    def exchange(self, request: m.GetPage, timeout_s: float | None = None) -> m.PageRows: ...
    @overload
    def exchange(self, request: m.Attend | m.FoldOnto, timeout_s: float | None = None) -> m.PartialReply: ...
    @overload
    def exchange(self, request: m.TailOpen, timeout_s: float | None = None) -> m.TailOpened: ...
    @overload
    def exchange(self, request: m.TailChunk, timeout_s: float | None = None) -> m.TailAck: ...
    @overload
    def exchange(self, request: m.GetState, timeout_s: float | None = None) -> m.StateReply: ...
    @overload
    def exchange(
        self,
        request: m.DropPages | m.Bind | m.Release | m.TailRewind | m.PutRows | m.PutState | m.NamePages,
        timeout_s: float | None = None,
    ) -> m.Ok: ...
    def exchange(self, request: m.Message, timeout_s: float | None = None) -> m.Message:
        """Sends a request and waits for its reply."""
        return self.wait(self.post(request), timeout_s)

    def greet(self, hello: m.Hello, timeout_s: float | None = None) -> m.Welcome:
        """Says Hello. Raises Mismatch if the worker speaks another protocol."""
        welcome = self.exchange(hello, timeout_s)
        if welcome.protocol != hello.protocol:
            raise Mismatch(
                f"the worker {welcome.name} ({welcome.software}) speaks protocol {welcome.protocol}, "
                f"this host ({hello.software}) {hello.protocol}; install the same version on both."
            )
        return welcome

    def measure(self) -> LinkSpeed:
        """Times Pings, small and large; the planner reads the result from `speed`."""
        probe = m.Ping(echo=True, payload=np.zeros(PROBE_BYTES, np.uint8))
        bulk = m.Ping(echo=False, payload=np.zeros(BULK_BYTES, np.uint8))
        small = [self._time(probe) for _ in range(PROBE_PINGS)]
        large = [self._time(bulk) for _ in range(BULK_PINGS)]
        rtt_s = statistics.median(small)
        bulk_s = statistics.median(large)
        self.speed = LinkSpeed(
            rtt_us=rtt_s * 1e6,
            p90_us=statistics.quantiles(small, n=10)[-1] * 1e6,
            # At least half: on a link so quick that the round trip rivals the transfer, noise must not win.
            bytes_per_s=BULK_BYTES / max(bulk_s - rtt_s, bulk_s / 2),
        )
        return self.speed

    def _time(self, ping: m.Ping) -> float:
        start = time.perf_counter()
        self.exchange(ping)
        return time.perf_counter() - start

    def _collect(self, tag: int, deadline: float) -> m.Message:
        with self._lock:
            while self._reading and tag not in self._arrived:
                self._follow(deadline)
            if tag in self._arrived:
                self.exchanges += 1
                return self._arrived.pop(tag)
            if self._failure is not None:
                raise LinkClosed(f"the link to {self.peer} is closed: {self._failure}")
            self._reading = True
        try:
            while True:
                arrived, message = self._read(deadline)
                if arrived == tag:
                    break
                self._deliver(arrived, message)
        except BaseException as error:
            first = self._failure
            self._fail(error)
            if first is not None:
                # Another thread closed the channel under us; its reason says more than our end of file.
                raise LinkClosed(f"the link to {self.peer} is closed: {first}") from None
            raise
        with self._lock:
            self._reading = False
            self.exchanges += 1
            if self._followers:
                self._changed.notify_all()
        return message

    def _follow(self, deadline: float) -> None:
        """Waits, with the lock held, until the reading thread says that something changed."""
        if self._failure is not None:
            raise LinkClosed(f"the link to {self.peer} is closed: {self._failure}")
        left = deadline - time.monotonic()
        if left <= 0:
            error = LinkTimeout(f"no reply from {self.peer} in time")
            self._end(error)
            raise error
        self._followers += 1
        try:
            self._changed.wait(left)
        finally:
            self._followers -= 1

    def _deliver(self, tag: int, message: m.Message) -> None:
        """Keeps another thread's reply for it."""
        if tag not in self._expected or tag in self._arrived:
            raise ProtocolError(f"{self.peer} answered a request (tag {tag}) that nobody made")
        with self._lock:
            self._arrived[tag] = message
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        super()._fail(error)
        self._changed.notify_all()
