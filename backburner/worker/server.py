"""The worker's server: whom it lets in, and which one of them is served."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from backburner.attention.engine import AttentionEngine
from backburner.errors import (
    BackburnerError,
    LinkClosed,
    LinkTimeout,
    RemoteError,
    TransportError,
    WorkerBusy,
)
from backburner.kv.mover import HEARTBEAT_S
from backburner.transport import messages as m
from backburner.transport.channel import Channel, Door
from backburner.transport.peer import Peer
from backburner.worker.session import Session
from backburner.worker.store import PageStore
from backburner.worker.throttle import Throttle

if TYPE_CHECKING:
    from backburner.worker.baker import BakeSettings
    from backburner.worker.bakery import Bakery
    from backburner.worker.tail import Tail

log = logging.getLogger("backburner.worker")

# A caller that has not said all of its Hello by then is not a host.
HELLO_DEADLINE_S = 5.0

# After so long without a word a host gives way to another that calls: an outage may have ended it without an end of
# file, and it may be the same one that calls again.
SILENT_S = 3 * HEARTBEAT_S

# A host that attends to its own pages reads nothing meanwhile, and a partial of several MB fills the buffers.
SEND_DEADLINE_S = 60.0

# How often the accepting thread looks whether it should stop.
ACCEPT_POLL_S = 0.5

# After a caller that could not be taken: when descriptors are short, the same one waits at the door still.
ACCEPT_PAUSE_S = 0.2

# Callers beyond loopback that have not shown their key yet. When more come the oldest gives way: a paired host shows
# its key in milliseconds, a stranger who keeps places may not keep it out.
UNPROVEN_MAX = 32

# How long the end of a session waits for the request that is being answered; the slowest takes about a second.
STOP_DEADLINE_S = 5.0


class WorkerServer:
    """Accepts hosts on one listener. One is served; others are refused by name until it leaves or falls silent."""

    def __init__(
        self,
        listener: Door,
        engine: AttentionEngine,
        memory_bytes: int,
        name: str,
        engines: tuple[str, ...],
        throttle: Throttle | None = None,
        model: tuple[str, Path] | None = None,
        doorkeeper: Callable[[Channel], Channel] | None = None,
        bake: "BakeSettings | None" = None,
        introduce: Callable[[m.PairKeys], m.Paired] | None = None,
    ) -> None:
        """model: name and folder of the one whose layers this worker runs for hosts that ask. Raises ModelError.

        doorkeeper: gives the channel to read from, or raises for a caller that may not come in. None: all may.
        introduce: trusts a host's key. Only without a doorkeeper: a paired host must not let others in.
        """
        self.throttle: AbstractContextManager[object] = throttle or nullcontext()
        self._listener = listener
        self._engine = engine
        self._name = name
        self._engines = engines
        self.store = PageStore(engine, memory_bytes)
        self.bakery = None if bake is None else self._make_bakery(bake)
        self._tail = None if model is None else self._make_tail(*model)
        self._serving: Peer | None = None
        self._session: threading.Thread | None = None
        self._lock = threading.RLock()  # `close` runs in a signal handler, maybe on top of `serve_forever`
        self._closing = threading.Event()
        self._doorkeeper = doorkeeper
        self._introduce = introduce if doorkeeper is None else None
        self._unproven: list[Channel] = []

    @property
    def address(self) -> str:
        return self._listener.address

    def serve_forever(self) -> None:
        """Accepts until `close`. Each host is served on a thread of its own, the store by one at a time."""
        try:
            self._accept_hosts()
        finally:
            self.close()
            if self._session is not None:  # the process must not end before what it leaves is freed
                self._session.join(STOP_DEADLINE_S)
            if self._tail is not None:
                self._tail.close(STOP_DEADLINE_S)
            if self.bakery is not None:
                self.bakery.close(STOP_DEADLINE_S)

    def _make_bakery(self, settings: "BakeSettings") -> "Bakery":
        from backburner.attention.baked import BakedEngine
        from backburner.worker.bakery import Bakery

        assert isinstance(self._engine, BakedEngine), "pages are baked beside a baked engine"
        return Bakery(self.store, self._engine, settings)

    def _make_tail(self, name: str, folder: Path) -> "Tail":
        # Only here: a worker that runs no layers needs no MLX.
        from backburner.worker.tail import Tail

        return Tail(name, folder, self.store, self._engine, self.throttle)

    def _accept_hosts(self) -> None:
        while not self._closing.is_set():
            try:
                channel = self._listener.accept(ACCEPT_POLL_S)
            except LinkTimeout:
                continue
            except LinkClosed:
                return
            except OSError as e:
                log.warning("a caller could not be taken: %s", e)
                self._closing.wait(ACCEPT_PAUSE_S)
                continue
            if self._doorkeeper is None:
                self._admit(channel)
            else:
                self._prove(channel, self._doorkeeper)

    def _prove(self, channel: Channel, doorkeeper: Callable[[Channel], Channel]) -> None:
        """Admits the caller once it has passed. Until then it has no place: neither here nor among the hosts."""
        with self._lock:
            if len(self._unproven) >= UNPROVEN_MAX:
                self._unproven.pop(0).close()
            self._unproven.append(channel)

        def check() -> None:
            try:
                passed = doorkeeper(channel)
            except BackburnerError as e:
                channel.close()
                log.warning("refused a caller: %s", e)
                return
            finally:
                with self._lock:
                    if channel in self._unproven:
                        self._unproven.remove(channel)
            self._admit(passed)

        threading.Thread(target=check, name=f"caller {channel.peer}", daemon=True).start()

    def _admit(self, channel: Channel) -> None:
        """Serves the caller, or says that another host is being served; on a thread of its own."""
        peer = Peer(channel, SEND_DEADLINE_S)
        with self._lock:
            if self._closing.is_set():
                channel.close()
                return
            busy = self._serving is not None
            run = self._serve_or_refuse if busy else self._serve
            thread = threading.Thread(
                target=run, args=(peer, channel), name=f"host {channel.peer}", daemon=True
            )
            if not busy:
                self._serving, self._session = peer, thread
            thread.start()

    def close(self) -> None:
        self._closing.set()
        self._listener.close()
        with self._lock:
            peer = self._serving
            unproven = list(self._unproven)
        for channel in unproven:
            channel.close()
        if peer is not None:
            peer.close()

    def _serve(self, peer: Peer, channel: Channel, first: tuple[int, m.Message] | None = None) -> None:
        try:
            tag, hello = first or peer.receive_first(HELLO_DEADLINE_S)
            Session(
                peer,
                self.store,
                self._engine,
                self._name,
                self._engines,
                self._tail,
                self.throttle,
                self.bakery,
                self._introduce,
            ).run(tag, hello)
        except TransportError as e:
            log.info("the host at %s left: %s", channel.peer, e)
        except RemoteError as e:
            log.warning("refused the host at %s: %s", channel.peer, e)
        except Exception:
            log.exception("serving %s failed", channel.peer)
        finally:
            peer.close()
            if self._tail is not None:
                self._tail.forget_host(peer)
            self.store.release_all()
            self._engine.leave_thread()
            with self._lock:
                self._serving = None

    def _serve_or_refuse(self, peer: Peer, channel: Channel) -> None:
        """Answers a second host's Hello, and nothing else, with the reason; serves it if the first gives way."""
        error = WorkerBusy("this worker already serves another host; stop that one, or use another worker.")
        try:
            first = peer.receive_first(HELLO_DEADLINE_S)
            if isinstance(first[1], m.Hello) and self._give_place(peer):
                self._serve(peer, channel, first)
                return
            peer.reply_error(first[0], error.code, str(error))
            log.warning("refused a second host at %s", channel.peer)
        except TransportError as e:
            log.debug("a second caller at %s: %s", channel.peer, e)
        finally:
            peer.close()

    def _give_place(self, peer: Peer) -> bool:
        """Makes the caller the one that is served, on this thread, if the host before has left or is silent."""
        with self._lock:
            before, session = self._serving, self._session
        if before is not None and session is not None and (silent_s := before.silent_s) >= SILENT_S:
            log.warning(
                "the host at %s has been silent for %.0f s; %s called", before.peer, silent_s, peer.peer
            )
            before.close()
            session.join(STOP_DEADLINE_S)
        with self._lock:
            if self._serving is not None or self._closing.is_set():
                return False
            self._serving, self._session = peer, threading.current_thread()
            return True
