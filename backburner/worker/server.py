"""The worker's server: greets one host at a time and answers its requests from the page store."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from backburner import __version__
from backburner.attention.engine import AttentionEngine, Geometry, Partial
from backburner.attention.folded import AttentionAhead
from backburner.attention.numpy_engine import STORAGE_DTYPES, widen
from backburner.errors import (
    BackburnerError,
    BadRequest,
    LinkClosed,
    LinkTimeout,
    Mismatch,
    NoModel,
    OutOfBudget,
    RemoteError,
    TransportError,
    WorkerBusy,
)
from backburner.kv.mover import HEARTBEAT_S
from backburner.transport import messages as m
from backburner.transport.channel import Channel, Door
from backburner.transport.peer import Peer, error_reply
from backburner.transport.read_ahead import ReadAhead
from backburner.worker.store import PageStore
from backburner.worker.throttle import Throttle

if TYPE_CHECKING:
    from backburner.worker.baker import BakeSettings
    from backburner.worker.bakery import Bakery
    from backburner.worker.tail import Tail

log = logging.getLogger("backburner.worker")

# A caller that has not said all of its Hello by then is not a host.
HELLO_DEADLINE_S = 5.0

# Hosts send something every 5 s, but a host whose machine sleeps, or which a debugger has stopped, may be late.
IDLE_DEADLINE_S = 600.0

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

# Queries whose fold another worker's partial has to come before. A host has two of each question here,
# and two questions on their way in a read.
AHEAD_MAX = 4

# What a worker with a model answers on the tail's own thread.
TAIL_REQUESTS = (m.TailOpen, m.TailRewind, m.PutRows, m.PutState, m.TailChunk, m.GetState, m.NamePages)


class Session:
    """One host's requests, in order. It knows the host's geometry; the pages outlive it."""

    def __init__(
        self,
        peer: Peer,
        store: PageStore,
        engine: AttentionEngine,
        name: str,
        engines: tuple[str, ...],
        tail: "Tail | None",
        throttle: AbstractContextManager[object],
        bakery: "Bakery | None" = None,
        introduce: Callable[[m.PairKeys], m.Paired] | None = None,
    ) -> None:
        self._bakery = bakery
        self._introduce = introduce
        self._peer = peer
        self._store = store
        self._engine = engine
        self._name = name
        self._engines = engines
        self._tail = tail
        self._throttle = throttle
        self._geometry: Geometry | None = None
        self._layers: tuple[int, ...] = ()
        self._ahead: dict[int, AttentionAhead] = {}  # by tag, oldest first
        self._tag = 0  # of the request that is being answered
        self._attends = 0
        self._attend_s = 0.0
        self._started = time.monotonic()
        self._answers: dict[type[Any], Callable[[Any], m.Message]] = {
            m.Ping: lambda ping: m.Pong(ping.payload if ping.echo else None),
            m.Have: self._have,
            m.PutPage: self._put_page,
            m.GetPage: self._get_page,
            m.DropPages: self._drop_pages,
            m.Bind: self._bind,
            m.Release: self._release,
            m.Attend: self._attend,
            m.AttendAhead: self._attend_ahead,
            m.FoldOnto: self._fold_onto,
            m.Stats: self._stats,
        }

    def run(self, first: tuple[int, m.Message] | None = None) -> None:
        """Serves until the host leaves. Raises TransportError then; a refused Hello ends it with its RemoteError.

        Returns if the host came to exchange keys: that is all it may do with this connection.
        first: its first request and tag, if that has been received.
        """
        tag, hello = first or self._peer.receive_first(HELLO_DEADLINE_S)
        try:
            if isinstance(hello, m.PairKeys):
                self._peer.reply(tag, self._exchange_keys(hello))
                return
            if not isinstance(hello, m.Hello):
                raise BadRequest(f"{type(hello).__name__} before Hello")
            welcome = self._greet(hello)
        except RemoteError as e:
            self._peer.reply_error(tag, e.code, str(e))
            raise
        self._peer.reply(tag, welcome)
        log.info("serving %s (%s)", hello.name, hello.software)
        requests = ReadAhead(self._peer, IDLE_DEADLINE_S)
        try:
            while True:
                tag, request = requests.receive()
                self._tag = tag
                reply = self._reply_to(request)
                if reply is not None:
                    with requests.replying():
                        self._peer.reply(tag, reply)
        finally:
            requests.close()

    def _reply_to(self, request: m.Message) -> m.Message | None:
        """None: the tail replies by itself."""
        try:
            if isinstance(request, TAIL_REQUESTS):
                self._pass_on(self._tag, request)
                return None
            return self._answer(request)
        except RemoteError as e:
            log.debug("refused %s: %s", type(request).__name__, e)
            return error_reply(e.code, str(e))
        except Exception as e:  # a fault of ours: this request fails, the pages and the link live on
            log.exception("%s failed", type(request).__name__)
            return error_reply(RemoteError.code, f"{type(e).__name__}: {e}")

    def _exchange_keys(self, request: m.PairKeys) -> m.Paired:
        if self._introduce is None:
            raise BadRequest(
                f"the worker {self._name} takes no keys here: on its own machine start it with --pair-cable, on a "
                "network with --pair."
            )
        return self._introduce(request)

    def _pass_on(self, tag: int, request: m.Message) -> None:
        """To the tail, which replies by itself."""
        if self._tail is None:
            raise NoModel(f"the worker {self._name} has no model: start it with --model, the host's.")
        self._tail.submit(self._peer, tag, self.geometry, request)

    def _answer(self, request: m.Message) -> m.Message:
        answer = self._answers.get(type(request))
        if answer is None:
            raise BadRequest(f"{type(request).__name__} is not expected here")
        return answer(request)

    def _greet(self, hello: m.Hello) -> m.Welcome:
        if hello.protocol != m.PROTOCOL_VERSION:
            raise Mismatch(
                f"the host {hello.name} ({hello.software}) speaks protocol {hello.protocol}, this worker "
                f"(backburner {__version__}) {m.PROTOCOL_VERSION}; install the same version on both."
            )
        if not hello.layers or len(set(hello.layers)) < len(hello.layers):
            # "At all layers of Hello" would be true of every page, or its bytes counted twice.
            raise BadRequest(f"a Hello with the attention layers {list(hello.layers)}: none, or one twice")
        g = hello.geometry
        if g.dtype not in STORAGE_DTYPES:
            raise Mismatch(f"the host's pages are {g.dtype}; this worker stores {', '.join(STORAGE_DTYPES)}.")
        if g.q_heads % g.kv_heads:
            raise Mismatch(
                f"the host has {g.q_heads} query heads for {g.kv_heads} K/V heads: not a multiple."
            )
        geometry = Geometry(g.q_heads, g.kv_heads, g.head_dim, g.page_tokens, g.dtype, g.scale)
        page_bytes = self._engine.page_bytes(geometry) * len(hello.layers)
        if page_bytes > self._store.memory_bytes:
            raise Mismatch(
                f"one page of the host's model takes {page_bytes} bytes over its {len(hello.layers)} attention layers; "
                f"this worker's --memory is {self._store.memory_bytes}. Raise it, or lower the host's --page-tokens."
            )
        self._geometry, self._layers = geometry, tuple(hello.layers)
        if self._bakery is not None:
            self._bakery.greet(geometry, self._layers)
        return m.Welcome(
            protocol=m.PROTOCOL_VERSION,
            software=f"backburner {__version__}",
            name=self._name,
            engine=self._engine.name,
            engines=self._engines,
            memory_bytes=self._store.memory_bytes,
            free_bytes=self._store.free_bytes,
            held_pages=self._store.complete_pages(),
            pairing="none",
            layers=self._tail.layers if self._tail else 0,
        )

    @property
    def geometry(self) -> Geometry:
        assert self._geometry is not None, "no request is answered before Hello"
        return self._geometry

    def _checked_layer(self, layer: int) -> int:
        if layer not in self._layers:
            raise BadRequest(
                f"layer {layer} is not one of the attention layers {list(self._layers)} of Hello"
            )
        return layer

    def _checked_rows(self, x: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
        g = self.geometry
        if x.shape[0] != heads or x.shape[2] != g.head_dim or x.dtype != STORAGE_DTYPES[g.dtype]:
            raise BadRequest(
                f"a tensor {x.dtype} {list(x.shape)} where {g.dtype} [{heads}, rows, {g.head_dim}] was agreed in Hello"
            )
        return x

    def _have(self, request: m.Have) -> m.HaveReply:
        layers = self._layers if request.layer is None else (self._checked_layer(request.layer),)
        bits = [all(self._store.has(key, layer, self.geometry) for layer in layers) for key in request.keys]
        return m.HaveReply(np.packbits(np.array(bits, dtype=bool), bitorder="little").tobytes())

    def _put_page(self, request: m.PutPage) -> m.PageAck:
        g = self.geometry
        layer = self._checked_layer(request.layer)
        k, v = (self._checked_rows(x, g.kv_heads) for x in (request.k, request.v))
        while True:
            try:
                rows = self._store.put(request.key, layer, request.row0, k, v, g)
                return m.PageAck(request.key, layer, rows, rows == g.page_tokens)
            except OutOfBudget:
                if self._tail is None or not self._tail.give_way():
                    raise

    def _get_page(self, request: m.GetPage) -> m.PageRows:
        layer = self._checked_layer(request.layer)
        stop = request.row0 + request.rows
        return m.PageRows(*self._store.rows(request.key, layer, request.row0, stop, self.geometry))

    def _drop_pages(self, request: m.DropPages) -> m.Ok:
        self._store.drop(request.keys)
        return m.Ok()

    def _bind(self, request: m.Bind) -> m.Ok:
        self._store.bind(request.sequence, request.keys, self._layers, self.geometry)
        if self._bakery is not None:
            self._bakery.wake()
        return m.Ok()

    def _release(self, request: m.Release) -> m.Ok:
        self._store.release(request.sequence)
        return m.Ok()

    def _attend(self, request: m.Attend) -> m.PartialReply:
        return self._timed(lambda: self._begin(request).fold(None))

    def _attend_ahead(self, request: m.AttendAhead) -> m.Ok:
        start = time.perf_counter()
        while len(self._ahead) >= AHEAD_MAX:  # a host that lost interest
            del self._ahead[next(iter(self._ahead))]
        with self._throttle:
            self._ahead[self._tag] = self._begin(request)
        self._attend_s += time.perf_counter() - start
        return m.Ok()

    def _fold_onto(self, request: m.FoldOnto) -> m.PartialReply:
        ahead = self._ahead.pop(request.ahead, None)
        if ahead is None:
            raise BadRequest(f"no AttendAhead with tag {request.ahead} waits for its fold")
        if request.o.shape != ahead.shape:
            raise BadRequest(f"a fold of shape {list(request.o.shape)} for a query of {list(ahead.shape)}")
        return self._timed(lambda: ahead.fold(Partial(request.o, request.lse)))

    def _begin(self, request: m.Attend | m.AttendAhead) -> AttentionAhead:
        if not request.count:
            raise BadRequest(f"an {type(request).__name__} over no page")
        g = self.geometry
        q = widen(self._checked_rows(request.q, g.q_heads))
        layer = self._checked_layer(request.layer)
        pages = self._store.bound_pages(request.sequence, layer, request.first, request.count, g)
        if self._bakery is not None:
            keys = self._store.bound_keys(request.sequence)
            pages = self._bakery.arrange(g, layer, keys, request.first, pages, q.shape[1])
        return AttentionAhead(self._engine, g, q, pages)

    def _timed(self, attend: Callable[[], Partial]) -> m.PartialReply:
        start = time.perf_counter()
        with self._throttle:
            partial = attend()
        self._attends += 1
        self._attend_s += time.perf_counter() - start
        return m.PartialReply(partial.o, partial.lse)

    def _stats(self, request: m.Stats) -> m.StatsReply:
        return m.StatsReply(
            memory_bytes=self._store.memory_bytes,
            used_bytes=self._store.used_bytes,
            pages=len(self._store),
            sequences=self._store.sequences,
            attends=self._attends,
            attend_seconds=self._attend_s,
            uptime_s=time.monotonic() - self._started,
            bake=None if self._bakery is None else self._bakery.state(),
        )


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
            ).run(first)
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
