"""One host's requests at a worker, answered in order from the page store."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from backburner import __version__
from backburner.attention.engine import AttentionEngine, Geometry, Partial
from backburner.attention.folded import AttentionAhead
from backburner.attention.numpy_engine import STORAGE_DTYPES, widen
from backburner.errors import BadRequest, Mismatch, NoModel, OutOfBudget, RemoteError
from backburner.transport import messages as m
from backburner.transport.peer import Peer, error_reply
from backburner.transport.read_ahead import ReadAhead
from backburner.worker.store import PageStore

if TYPE_CHECKING:
    from backburner.worker.bakery import Bakery
    from backburner.worker.tail import Tail

log = logging.getLogger("backburner.worker")

# Hosts send something every 5 s, but a host whose machine sleeps, or which a debugger has stopped, may be late.
IDLE_DEADLINE_S = 600.0

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

    def run(self, tag: int, hello: m.Message) -> None:
        """Serves until the host leaves. Raises TransportError then; a refused Hello ends it with its RemoteError.

        Returns if the host came to exchange keys: that is all it may do with this connection.
        tag, hello: of its first request.
        """
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
