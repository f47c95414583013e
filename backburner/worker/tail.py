"""The tail: a thread of the worker that runs the model's layers after a seam, for the sequences of one host."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.attention.numpy_engine import widen
from backburner.errors import BadRequest, Mismatch, OutOfBudget, RemoteError, TransportError, UnknownPage
from backburner.kv.pages import PageTable
from backburner.model.arrays import from_numpy, to_numpy
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.hybrid import HybridModel
from backburner.model.load import Part, load, model_type_for, read_config, text_config
from backburner.transport import messages as m
from backburner.transport.peer import Peer
from backburner.worker.mirror import Array, Mirror, MirrorPages, Span, leave_thread, numpy_dtype
from backburner.worker.store import PageStore

log = logging.getLogger("backburner.worker")

# One conversation and the one before it: a host that answers two in turn finds both again.
MIRRORS_MAX = 2

# Longer ones help nobody: at 256 rows the matrix products are as fast as they get.
UBATCH_TOKENS_MAX = 8192


@dataclass(frozen=True, slots=True)
class _Caller:
    """Whom a reply goes to, and the pages' shape in that host's Hello."""

    peer: Peer
    tag: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A GetState for a position that the mirror has not reached."""

    caller: _Caller
    mirror: Mirror
    layer: int
    position: int


class Tail:
    """Answers the tail's messages in the order they came, on a thread of its own: MLX's graphs and models stay there.

    Mirrors outlive the connection. A host that comes back finds them by its keys.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        store: PageStore,
        engine: AttentionEngine,
        throttle: AbstractContextManager[object],
    ) -> None:
        """Looks at the config; the weights are read when a host says which layers. Raises ModelError."""
        self._name = name
        self._folder = folder
        self._config = read_config(folder)
        model_type_for(self._config)
        self.layers = int(text_config(self._config)["num_hidden_layers"])
        self._store = store
        self._engine = engine
        self._throttle = throttle
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Which mirrors there are and who uses them; the session's thread looks, too. Under the lock nothing is computed
        # or sent, and the store, which has one of its own, is not called.
        self._lock = threading.Lock()
        self._mirrors: list[Mirror] = []  # least recently used first
        self._sequences: dict[int, Mirror] = {}
        # All below belongs to the thread.
        self._model: HybridModel | None = None
        self._loaded: Part | None = None
        self._fingerprints: dict[Part, bytes] = {}
        self._layer_us: dict[tuple[Part, int], float] = {}  # by part and ubatch_tokens
        self._waiting: list[_Waiting] = []
        self._answers: dict[type[Any], Callable[[_Caller, Any], m.Message | None]] = {
            m.TailOpen: self._open,
            m.TailRewind: self._rewind,
            m.PutRows: self._put_rows,
            m.PutState: self._put_state,
            m.TailChunk: self._run_chunk,
            m.GetState: self._get_state,
            m.NamePages: self._name_pages,
        }
        self._thread = threading.Thread(target=self._main, name="tail", daemon=True)
        self._thread.start()

    def submit(self, peer: Peer, tag: int, geometry: Geometry, request: m.Message) -> None:
        """Queues a request; its reply goes out by itself."""
        self._jobs.put(lambda: self._answer(_Caller(peer, tag, geometry), request))

    def forget_host(self, peer: Peer) -> None:
        """The host has left: its sequences end and nobody waits for replies; the mirrors stay."""
        self._jobs.put(lambda: self._forget(peer))

    def give_way(self) -> bool:
        """Ends the mirror that was not used for longest, so that pages have its memory; False when each may be in use.
        For the session's thread, which cannot wait for this one: a chunk may take seconds.

        A read may use the newest one, as long as a sequence of the host names it; the one opened last (pages of an
        older conversation may have been named since); and one that somebody waits for.
        """
        with self._lock:
            in_use = [waiting.mirror for waiting in tuple(self._waiting)]  # the other thread changes it
            in_use += [mirror for mirror in self._mirrors[-1:] if mirror in self._sequences.values()]
            in_use += list(self._sequences.values())[-1:]
            idle = [mirror for mirror in self._mirrors if mirror not in in_use]
            if not idle:
                return False
            mirror = idle[0]
            self._take_out(mirror)
        mirror.pages.truncate(0)  # nobody else knows it now
        self._jobs.put(mirror.release)  # the states are MLX's, whose thread this is not
        log.info("a tail's rows gave way to pages")
        return True

    def close(self, timeout_s: float) -> None:
        """Ends the thread after the job that it is in. May be called twice."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _main(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        finally:
            for mirror in list(self._mirrors):
                self._drop(mirror, "the worker stops")
            self._engine.leave_thread()
            leave_thread()

    def _answer(self, caller: _Caller, request: m.Message) -> None:
        """Handles one request and replies, unless the reply is put off. Never raises."""
        if not caller.peer.alive:
            return
        try:
            reply = self._answers[type(request)](caller, request)
        except Exception as e:
            self._refuse(caller, e, type(request).__name__)
        else:
            if reply is not None:
                self._reply(caller, reply)

    def _reply(self, caller: _Caller, reply: m.Message) -> None:
        try:
            caller.peer.reply(caller.tag, reply)
        except TransportError as e:  # the session's thread sees it too
            log.debug("a reply to %s did not go out: %s", caller.peer.peer, e)
        except Exception as e:
            self._refuse(caller, e, type(reply).__name__)

    def _refuse(self, caller: _Caller, error: Exception, what: str) -> None:
        if isinstance(error, RemoteError):
            log.debug("refused %s: %s", what, error)
            code, text = error.code, str(error)
        else:  # a fault of ours, or a model that does not load
            log.error("%s failed", what, exc_info=error)
            code, text = RemoteError.code, f"{type(error).__name__}: {error}"
        try:
            caller.peer.reply_error(caller.tag, code, text)
        except TransportError as e:
            log.debug("an error to %s did not go out: %s", caller.peer.peer, e)

    def _forget(self, peer: Peer) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting.caller.peer is not peer]
        with self._lock:
            self._sequences = {}

    def _open(self, caller: _Caller, request: m.TailOpen) -> m.TailOpened:
        part = Part(request.first_layer, request.stop_layer, request.head)
        self._check_part(part)
        if request.ubatch_tokens > UBATCH_TOKENS_MAX:
            raise BadRequest(f"ubatches of {request.ubatch_tokens} tokens; {UBATCH_TOKENS_MAX} is the most")
        fingerprint = self._fingerprint(part)
        if request.fingerprint != fingerprint:
            raise Mismatch(
                f"layers [{part.first}, {part.stop}) of the host's model are {request.fingerprint.hex()[:12]}, those "
                f"of this worker's {self._name} {fingerprint.hex()[:12]}; give both the same --model."
            )
        model = self._model_with(part)
        geometry = model.geometry(caller.geometry.page_tokens)
        if caller.geometry != geometry:
            raise Mismatch(
                f"the host's pages are {caller.geometry}, this worker's {self._name} makes {geometry}."
            )
        layer_us = self._measure(model, part, request.ubatch_tokens, geometry)
        span = Span(part, fingerprint, request.ubatch_tokens, geometry)
        with self._lock:
            mirror = self._mirror_for(span, model, request.keys)
            before = self._sequences.get(request.sequence, mirror)
            self._sequences = {s: other for s, other in self._sequences.items() if other is not mirror}
            self._sequences[request.sequence] = mirror
            surplus = self._mirrors[:-MIRRORS_MAX]
        for left in (mirror, before):
            self._give_up_waiting(left, "the tail was opened anew")
        for left in surplus:
            self._drop(left, "the tail is needed for other sequences")
        with self._dropping_if_it_fails(mirror):
            mirror.open(request.keys)
        return m.TailOpened(mirror.rows, mirror.states(), layer_us)

    def _rewind(self, caller: _Caller, request: m.TailRewind) -> m.Ok:
        mirror = self._mirror(request.sequence)
        if request.position > mirror.rows:
            raise BadRequest(f"position {request.position} of a tail that has {mirror.rows} rows")
        with self._dropping_if_it_fails(mirror):
            mirror.rewind(request.position)
        return m.Ok()

    def _put_rows(self, caller: _Caller, request: m.PutRows) -> m.Ok:
        mirror = self._mirror(request.sequence)
        try:
            mirror.put_rows(request.layer, request.position, request.k, request.v)
        except OutOfBudget as e:  # nobody goes on with it, and pages have a use for its memory
            self._drop(mirror, f"the tail failed: {e}")
            raise
        return m.Ok()

    def _put_state(self, caller: _Caller, request: m.PutState) -> m.Ok:
        mirror = self._mirror(request.sequence)
        mirror.put_state(request.layer, request.position, request.conv, request.recurrent)
        return m.Ok()

    def _name_pages(self, caller: _Caller, request: m.NamePages) -> m.Ok:
        self._mirror(request.sequence).pages.name(request.keys)
        return m.Ok()

    def _get_state(self, caller: _Caller, request: m.GetState) -> m.StateReply | None:
        mirror = self._mirror(request.sequence)
        if request.position > mirror.rows:
            part = mirror.span.part
            if not part.first <= request.layer < part.stop:
                raise BadRequest(f"layer {request.layer} is not in [{part.first}, {part.stop})")
            self._waiting.append(_Waiting(caller, mirror, request.layer, request.position))
            return None
        return m.StateReply(*mirror.left_at(request.layer, request.position))

    def _run_chunk(self, caller: _Caller, request: m.TailChunk) -> m.TailAck:
        mirror = self._mirror(request.sequence)
        with self._dropping_if_it_fails(mirror):
            return self._run(mirror, request)

    def _run(self, mirror: Mirror, request: m.TailChunk) -> m.TailAck:
        part = mirror.span.part
        model = self._model_with(part)
        if request.residual.shape[1] != model.hidden_size or request.residual.dtype != numpy_dtype(
            model.dtype
        ):
            raise BadRequest(
                f"a residual {request.residual.dtype} {list(request.residual.shape)} where {model.dtype} "
                f"[rows, {model.hidden_size}] belongs"
            )
        if request.top is not None and not part.head:
            raise BadRequest("logits of a tail that was opened without the head")
        position, end = request.position, request.position + len(request.residual)
        wanted = frozenset(w.layer for w in self._waiting if w.mirror is mirror and w.position == end)
        start = time.perf_counter()
        with self._throttle:
            residual = mirror.run(
                model,
                position,
                from_numpy(request.residual, model.dtype)[None],
                wanted,
                lambda layer: self._answer_waiting(mirror, layer, end),
            )
            back = to_numpy(residual)[0] if part.stop < self.layers else None
            logits = None if request.top is None else to_numpy(model.logits(residual[:, -1:]))[0]
        seconds = time.perf_counter() - start
        mirror.name_chunk(request.key)
        if request.keep:
            mirror.keep()
        self._give_up_waiting(mirror, f"no chunk ended there; the tail is at {end}", up_to=end)
        ids = None
        if logits is not None and request.top:
            ids = largest(widen(logits), request.top)
            logits = logits[ids]
        k, v = self._stacked_rows(mirror, position, end) if request.rows else (None, None)
        return m.TailAck(end, seconds, k, v, back, logits, ids)

    def _stacked_rows(self, mirror: Mirror, start: int, stop: int) -> tuple[Array | None, Array | None]:
        """Rows of all attention layers of the span: [layers, kv_heads, rows, head_dim] each; None if it has none."""
        pairs = [mirror.pages.rows(layer, start, stop) for layer in mirror.pages.layers]
        if not pairs:
            return None, None
        k, v = zip(*pairs, strict=True)
        return np.stack(k), np.stack(v)

    def _answer_waiting(self, mirror: Mirror, layer: int, position: int) -> None:
        """The chunk that ends at `position` has left a layer that somebody waits for."""
        for waiting in list(self._waiting):
            if waiting.mirror is mirror and (waiting.layer, waiting.position) == (layer, position):
                self._waiting.remove(waiting)
                self._reply(waiting.caller, m.StateReply(*mirror.left_at(layer, position)))

    def _give_up_waiting(self, mirror: Mirror, why: str, up_to: int | None = None) -> None:
        """Refuses those who wait for something of a mirror that will not come."""
        for waiting in list(self._waiting):
            if waiting.mirror is mirror and (up_to is None or waiting.position <= up_to):
                self._waiting.remove(waiting)
                error = BadRequest(f"no state of layer {waiting.layer} at {waiting.position}: {why}")
                self._refuse(waiting.caller, error, "GetState")

    def _check_part(self, part: Part) -> None:
        if not part.first < part.stop <= self.layers:
            raise BadRequest(f"layers [{part.first}, {part.stop}) of a model that has {self.layers}")
        if part.head and part.stop != self.layers:
            raise BadRequest(f"the head follows layer {self.layers - 1}, not {part.stop - 1}")

    def _fingerprint(self, part: Part) -> bytes:
        if part not in self._fingerprints:
            self._fingerprints[part] = layers_fingerprint(
                self._folder, self._config, part.first, part.stop, part.head
            )
        return self._fingerprints[part]

    def _model_with(self, part: Part) -> HybridModel:
        """The model with at least these layers; read anew when it has fewer. Raises ModelError."""
        loaded = self._loaded
        if self._model is not None and loaded is not None:
            if loaded.first <= part.first and part.stop <= loaded.stop and loaded.head >= part.head:
                return self._model
            part = Part(min(loaded.first, part.first), max(loaded.stop, part.stop), loaded.head or part.head)
        self._model = self._loaded = None  # its memory is free before the new one takes more
        result = load(self._name, self._folder, part=part)
        log.info("%s: layers [%d, %d) loaded", self._name, part.first, part.stop)
        for note in result.notes:
            log.info("%s", note)
        self._model, self._loaded = result.model, part
        return self._model

    def _measure(self, model: HybridModel, part: Part, ubatch_tokens: int, geometry: Geometry) -> float:
        """Microseconds of one layer of the part over one ubatch. The first run compiles and touches memory; the second
        counts."""
        known = self._layer_us.get((part, ubatch_tokens))
        if known is not None:
            return known
        zeros = np.zeros((ubatch_tokens, model.hidden_size), numpy_dtype(model.dtype))
        # Pages of one ubatch: they go at once and count for nobody.
        small = replace(geometry, page_tokens=ubatch_tokens)
        layers = [i for i in model.attention_layers if part.first <= i < part.stop]
        seconds = 0.0
        for _ in range(2):
            pages = PageTable(self._engine, small, layers, b"")
            caches = [pages.layers[i] if i in layers else model.new_state() for i in range(part.stop)]
            start = time.perf_counter()
            with self._throttle:
                to_numpy(
                    model.run_layers(from_numpy(zeros, model.dtype)[None], caches, part.first, part.stop)
                )
            seconds = time.perf_counter() - start
        layer_us = seconds * 1e6 / (part.stop - part.first)
        self._layer_us[part, ubatch_tokens] = layer_us
        return layer_us

    def _mirror_for(self, span: Span, model: HybridModel, keys: Sequence[bytes]) -> Mirror:
        """The mirror that knows most of a sequence, or a new one; it is the newest now. Under the lock."""

        def worth(mirror: Mirror) -> tuple[int, bool]:
            known = mirror.known(keys)
            # Of two that were read alike, one that went on elsewhere has no states there any more.
            return known, known * span.ubatch_tokens in mirror.states()

        same = [mirror for mirror in self._mirrors if mirror.span == span and mirror.known(keys)]
        if same:
            mirror = max(reversed(same), key=worth)  # of equals the newest
            self._use(mirror)
            return mirror
        layers = [i for i in model.attention_layers if span.part.first <= i < span.part.stop]
        pages = MirrorPages(self._store, self._reserve, self._engine, span.geometry, layers)
        mirror = Mirror(span, model, pages)
        self._mirrors.append(mirror)
        return mirror

    def _mirror(self, sequence: int) -> Mirror:
        with self._lock:
            mirror = self._sequences.get(sequence)
            if mirror is None:
                raise UnknownPage(f"sequence {sequence} has no tail here; open it (again)")
            self._use(mirror)
            return mirror

    def _use(self, mirror: Mirror) -> None:
        """Under the lock."""
        self._mirrors.remove(mirror)
        self._mirrors.append(mirror)

    def _reserve(self, count: int) -> None:
        """Takes bytes for the mirror in use, the newest; the others give way before it is refused."""
        while True:
            try:
                self._store.reserve(count)
                return
            except OutOfBudget:
                with self._lock:
                    others = self._mirrors[:-1]
                if not others:
                    raise
                self._drop(others[0], "another sequence needs its memory")

    def _drop(self, mirror: Mirror, why: str) -> None:
        """Ends a mirror, unless it has just given way."""
        with self._lock:
            if mirror not in self._mirrors:
                return
            self._take_out(mirror)
        self._give_up_waiting(mirror, why)
        mirror.release()

    def _take_out(self, mirror: Mirror) -> None:
        """Nobody finds the mirror any more. Under the lock."""
        self._mirrors.remove(mirror)
        self._sequences = {s: other for s, other in self._sequences.items() if other is not mirror}

    @contextmanager
    def _dropping_if_it_fails(self, mirror: Mirror) -> Iterator[None]:
        """Whatever is raised inside leaves a mirror that nobody can rely on, so it goes."""
        try:
            yield
        except BaseException as e:
            self._drop(mirror, f"the tail failed: {e}")
            raise


def largest(values: np.ndarray[Any, np.dtype[np.float32]], count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Where the `count` largest values are, the largest first and the first of equals first, as argmax has it."""
    count = min(count, len(values))
    threshold = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[candidates], kind="stable")[:count]
    return candidates[order].astype(np.int32)
