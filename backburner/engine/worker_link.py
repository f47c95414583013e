"""The engine's side of one worker: greeting it, watching it, losing it and finding it again."""

import logging
import socket
import time
from collections.abc import Callable, Sequence

from backburner import __version__
from backburner.attention.engine import AttentionEngine, Geometry
from backburner.engine.request import WorkerStatus
from backburner.errors import BackburnerError, Mismatch
from backburner.kv.held import OVERDUE_PAGES, HeldPages
from backburner.kv.mover import PageMover
from backburner.kv.residency import Residency
from backburner.transport.link import Link, LinkSpeed
from backburner.transport.messages import PROTOCOL_VERSION, Hello, PageGeometry, Welcome

log = logging.getLogger("backburner.engine")

# A lost worker is tried again at the start of a request, but not more often than this.
RETRY_INTERVAL_S = 5.0

# What a request waits for a lost worker's greeting. One that is there answers in milliseconds; a frozen one still
# accepts connections, and each request would wait for it.
RETRY_GREETING_S = 2.0

Connect = Callable[[], Link]  # raises TransportError or ConfigError


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
        welcome = link.exchange(hello, timeout_s)
        if welcome.protocol != PROTOCOL_VERSION:
            raise Mismatch(
                f"the worker {welcome.name} ({welcome.software}) speaks protocol {welcome.protocol}, "
                f"this host (backburner {__version__}) {PROTOCOL_VERSION}; install the same version on both."
            )
        if welcome.pairing != "none":
            raise Mismatch(
                f"the worker {welcome.name} asks for pairing ({welcome.pairing}), which is not there yet."
            )
    except BackburnerError:
        link.close()
        raise
    return welcome


def _host_name() -> str:
    return socket.gethostname()[:64] or "host"


class WorkerLink:
    """A worker in use: its link, its mover, and what is known about it."""

    def __init__(
        self,
        connect: Connect,
        address: str,
        engine: AttentionEngine,
        geometry: Geometry,
        layers: Sequence[int],
        fingerprint: bytes,
        residency: Residency,
        overdue_pages: int = OVERDUE_PAGES,
    ) -> None:
        """Connects and greets. Raises what the connection raised."""
        self._connect = connect
        self.address = address
        self._engine = engine
        self._geometry = geometry
        self._layers = tuple(layers)
        self._fingerprint = fingerprint
        self._residency = residency
        self._overdue_pages = overdue_pages
        self._next_sequence = 1
        self._tried_at = 0.0
        self._lost: str | None = None
        self.held_pages = 0  # (page, layer) pairs that the running or last sequence has given away
        self._open()

    def _open(self, greeting_s: float | None = None) -> None:
        self._tried_at = time.monotonic()
        link = self._connect()
        self.welcome = greet(
            link, self._geometry, self._layers, self._fingerprint, self._engine.name, greeting_s
        )
        try:
            self.speed: LinkSpeed = link.measure()
        except BackburnerError:
            link.close()
            raise
        self._link = link
        self._mover = PageMover(link, self._engine, self._geometry)
        self._lost = None

    @property
    def lost(self) -> str | None:
        """Why the worker cannot be used now, or None."""
        # Nothing is remembered here: /health asks from another thread, maybe while a new link replaces the old.
        error = self._mover.error
        return self._lost or (str(error) if error else None if self._link.alive else "the link is closed")

    def new_sequence(self) -> HeldPages | None:
        """A holder for a new sequence's old pages, or None when the worker is lost and does not answer now."""
        self.held_pages = 0
        if self.lost is not None and not self._try_again():
            return None
        self._next_sequence += 1
        return HeldPages(self._link, self._mover, self._residency, self._next_sequence, self._overdue_pages)

    def _try_again(self) -> bool:
        if time.monotonic() - self._tried_at < RETRY_INTERVAL_S:
            return False
        self._mover.close()
        self._link.close()
        try:
            self._open(RETRY_GREETING_S)
        except BackburnerError as e:
            self._lost = str(e)
            self._tried_at = time.monotonic()  # an attempt may itself take longer than the interval
            log.warning("the worker at %s is still away, going on alone: %s", self.address, e)
            return False
        log.info("the worker at %s is back", self.address)
        return True

    def status(self) -> WorkerStatus:
        """What /health shows: the latest counters, without asking. Safe from any thread."""
        lost = self.lost
        stats, welcome = self._mover.stats, self.welcome
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
        )

    def close(self) -> None:
        self._mover.close()
        self._link.close()
