"""The engine's side of one worker: greeting it, watching it, losing it and finding it again, beside the work."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from backburner import __version__
from backburner.attention.engine import AttentionEngine, Geometry
from backburner.engine.request import WorkerStatus
from backburner.errors import BackburnerError, Mismatch
from backburner.kv.mover import PageMover
from backburner.kv.question import PageConnection
from backburner.transport.link import Link, LinkSpeed
from backburner.transport.messages import PROTOCOL_VERSION, Hello, PageGeometry, Welcome

log = logging.getLogger("backburner.engine")

# A lost worker is tried again at once, then after pauses that double: a phone whose app was switched is back in
# seconds, one that was unplugged may be away for hours.
RETRY_FIRST_S = 0.25
RETRY_INTERVAL_S = 5.0  # the longest pause

# What the greeting of a lost worker may take. One that is there answers in milliseconds; a frozen one still accepts
# connections.
RETRY_GREETING_S = 2.0

Connect = Callable[[], Link]  # raises TransportError or ConfigError

# Calls what it is given, on any thread, whenever the worker may have come; gives what ends that.
Watch = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a worker."""

    connect: Connect
    address: str  # for messages
    watch: Watch | None = None
    wait_s: float = 0.0  # how long the start waits for it


def greet(
    link: Link,
    geometry: Geometry,
    layers: Sequence[int],
    fingerprint: bytes,
    engine: str,
    timeout_s: float | None = None,
) -> Welcome:
    """Says Hello and checks the Welcome. Raises Mismatch, WorkerBusy or TransportError, with the link closed."""
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        software=f"backburner {__version__}",
        name=_host_name(),
        fingerprint=fingerprint,
        geometry=PageGeometry(
            geometry.q_heads,
            geometry.kv_heads,
            geometry.head_dim,
            geometry.page_tokens,
            geometry.dtype,
            geometry.scale,
        ),
        layers=tuple(layers),
        engine=engine,
    )
    try:
        welcome = link.greet(hello, timeout_s)
        if welcome.pairing != "none":
            raise Mismatch(
                f"the worker {welcome.name} asks for pairing ({welcome.pairing}), which this host does not know."
            )
    except BackburnerError:
        link.close()
        raise
    return welcome


def _host_name() -> str:
    return socket.gethostname()[:64] or "host"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has crossed to and from a worker."""

    bytes_sent: int = 0
    bytes_received: int = 0
    exchanges: int = 0
    moved_pages: int = 0
    found_pages: int = 0

    def plus(self, connection: PageConnection) -> "Traffic":
        link, mover = connection.link, connection.mover
        return Traffic(
            self.bytes_sent + link.bytes_sent,
            self.bytes_received + link.bytes_received,
            self.exchanges + link.exchanges,
            self.moved_pages + mover.moved_pages,
            self.found_pages + mover.found_pages,
        )


class WorkerLink:
    """A worker, there or away (`kv.held.PageWorker`). While it is away, a thread tries to reach it."""

    def __init__(
        self,
        connect: Connect,
        address: str,
        engine: AttentionEngine,
        geometry: Geometry,
        layers: Sequence[int],
        fingerprint: bytes,
        watch: Watch | None = None,
    ) -> None:
        """Connects and greets. Raises what the connection raised."""
        self._connect = connect
        self.address = address
        self._engine = engine
        self._geometry = geometry
        self._layers = tuple(layers)
        self._fingerprint = fingerprint
        self._changed = threading.Condition()
        self._closing = False
        self._retry_now = False
        self._arrivals = 0
        self._retrying: threading.Thread | None = None
        self._error: str | None = None  # of the last attempt to reach it
        self.reconnects = 0
        self._past = Traffic()  # of connections that were lost
        self.held_pages = 0  # (page, layer) pairs that the running or last sequence has given away
        self.tail_layers: tuple[int, int] | None = (
            None  # [first, stop) that it runs in the running or last split read
        )
        self._current = self._open(None)
        self._unwatch = watch(self._arrived) if watch is not None else lambda: None

    def _open(self, greeting_s: float | None) -> PageConnection:
        link = self._connect()
        self.welcome = greet(
            link, self._geometry, self._layers, self._fingerprint, self._engine.name, greeting_s
        )
        try:
            self.speed: LinkSpeed = link.measure()
        except BackburnerError:
            link.close()
            raise
        return PageConnection(link, PageMover(link, self._engine, self._geometry, len(self._layers)))

    @property
    def connection(self) -> PageConnection | None:
        """The worker, or None while it is away; asking for it then starts the search. Any thread."""
        current = self._current
        if current.alive:
            return current
        self._search()
        return None

    @property
    def free_pages(self) -> int:
        """Pages of all layers that the worker could hold."""
        page_bytes = self._engine.page_bytes(self._geometry) * len(self._layers)
        return int(self.welcome.free_bytes // page_bytes)

    @property
    def weight(self) -> float:
        """How fast it attends. Equal for all until a worker is known to differ."""
        stats = self._current.mover.stats
        if stats is None or not stats.attends or not stats.attend_seconds:
            return 1.0
        return stats.attends / stats.attend_seconds

    @property
    def lost(self) -> str | None:
        """Why the worker cannot be used now, or None."""
        # Nothing is remembered here: /health asks from another thread, maybe while a new link replaces the old.
        current = self._current
        return None if current.alive else self._error or current.error

    def await_return(self, timeout_s: float) -> bool:
        """Tries a lost worker at once, and waits for the outcome. Whether it is there."""
        if self.connection is not None:
            return True
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._retry_now = True
            self._changed.notify_all()
            return self._wait(deadline, lambda: not self._retry_now)

    def await_arrival(self, timeout_s: float) -> bool:
        """Waits for a lost worker through as many attempts as it takes; the first is at once. Whether it is there."""
        deadline = time.monotonic() + timeout_s
        if self.await_return(timeout_s):
            return True
        with self._changed:
            return self._wait(deadline, lambda: self._closing)

    def _wait(self, deadline: float, enough: Callable[[], bool]) -> bool:
        """With the lock held, until the worker is there or it is enough. Whether it is there."""
        self._changed.wait_for(lambda: self._current.alive or enough(), deadline - time.monotonic())
        return self._current.alive

    def _arrived(self) -> None:
        """A worker that is away may have come: it is tried now, whether or not anyone has asked for it."""
        if self._current.alive:
            return
        self._search()
        with self._changed:
            self._arrivals += 1
            self._changed.notify_all()

    def _search(self) -> None:
        with self._changed:
            if self._closing or (self._retrying is not None and self._retrying.is_alive()):
                return
            self._retrying = threading.Thread(target=self._retry, name="reconnect", daemon=True)
            self._retrying.start()

    def _retry(self) -> None:
        """Until the worker is there again. The lost one's mover ends first: its thread may wait on the dead link."""
        lost = self._current
        log.warning("the worker at %s is lost: %s", self.address, lost.error)
        lost.link.close()
        lost.mover.close()
        pause_s = RETRY_FIRST_S
        while True:
            arrivals = (
                self._arrivals
            )  # of before this attempt, which may have looked too early for a later one
            try:
                found = self._open(RETRY_GREETING_S)
            except BackburnerError as e:
                if self._error != str(e):
                    log.warning("the worker at %s is still away, going on without it: %s", self.address, e)
                self._error = str(e)
                found = None
            except Exception as e:  # a fault of ours must not end the search silently
                log.exception("reaching the worker failed")
                self._error, found = f"{type(e).__name__}: {e}", None
            with self._changed:
                self._retry_now = False
                self._changed.notify_all()
                if self._closing:
                    if found is not None:
                        found.link.close()
                        found.mover.close()
                    return
                if found is not None:
                    self._past = self._past.plus(lost)
                    self._current, self._error = found, None
                    self.reconnects += 1
                    log.info("the worker at %s is back", self.address)
                    return
                end = time.monotonic() + pause_s
                while not (self._retry_now or self._closing or self._arrivals != arrivals):
                    if not self._changed.wait(end - time.monotonic()):
                        break
                if self._closing:
                    return
                arrived = self._arrivals != arrivals
            # What was plugged in may take some seconds until it answers.
            pause_s = RETRY_FIRST_S if arrived else min(2 * pause_s, RETRY_INTERVAL_S)

    def status(self) -> WorkerStatus:
        """What /health shows: the latest counters, without asking. Safe from any thread."""
        lost = self.lost if self.connection is None else None
        with self._changed:  # what was lost is counted once
            current, traffic = self._current, self._past.plus(self._current)
        stats, welcome = current.mover.stats, self.welcome
        return WorkerStatus(
            state="lost" if lost else "ready",
            address=self.address,
            name=welcome.name,
            engine=welcome.engine,
            held_pages=self.held_pages,
            stored_pages=stats.pages if stats else welcome.held_pages,
            memory_bytes=welcome.memory_bytes,
            used_bytes=stats.used_bytes if stats else welcome.memory_bytes - welcome.free_bytes,
            rtt_us=self.speed.rtt_us,
            bytes_per_s=self.speed.bytes_per_s,
            error=lost,
            reconnects=self.reconnects,
            layers=self.tail_layers,
            bake=asdict(stats.bake) if stats and stats.bake else None,
            **asdict(traffic),
        )

    def close(self) -> None:
        self._unwatch()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._retrying is not None:
            self._retrying.join(RETRY_GREETING_S + 1)
        self._current.mover.close()
        self._current.link.close()
