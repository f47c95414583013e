"""The host's side of a split read: residuals out to the workers that run the tail layers, rows and states back."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backburner.engine.sequence import Checkpoint, Sequence
from backburner.errors import BackburnerError, ProtocolError, TransportError
from backburner.kv.mover import PIECE_BYTES
from backburner.kv.question import PageConnection
from backburner.model.arrays import from_numpy, to_numpy
from backburner.model.hybrid import HybridModel
from backburner.transport.messages import (
    GetState,
    PutRows,
    PutState,
    StateReply,
    TailAck,
    TailChunk,
    TailOpen,
    TailOpened,
    TailRewind,
)

log = logging.getLogger("backburner.engine")

# Ubatches that a stage may be behind. With two it has one to run and one waiting; three absorb a hiccup on either side
# (the first Backburner's figures: 70 tok/s at 140k tokens, 74 with three).
IN_FLIGHT = 3

# What is kept of residuals, to run the tail on the host when the worker is lost. Then the worker's states are asked
# for in the middle of a read, so that older residuals can go. 256 MiB are 25,000 tokens of a 27B model.
RESIDUAL_BYTES_MAX = 256 * 2**20

# Loading a tail's layers from a phone's flash: 8 GB at 1 GB/s, and room.
OPEN_DEADLINE_S = 120.0


class TailLost(BackburnerError):
    """A worker cannot go on with the tail of this read. The host can."""

    code = "tail_lost"


@dataclass(eq=False)
class Stage:
    """One worker and the layers that it runs."""

    connection: PageConnection
    first: int
    stop: int
    sequence: int
    opened: TailOpened | None = None

    def deadline_s(self, tokens: int) -> float:
        """The longest to wait until the worker has run so many tokens."""
        return self.connection.chunks.deadline_s(tokens * (self.stop - self.first))

    def observe(self, tokens: int, seconds: float) -> None:
        """It has run them."""
        self.connection.chunks.observe(tokens * (self.stop - self.first), seconds)

    def open(
        self, fingerprint: bytes, ubatch_tokens: int, keys: Items[bytes], head: bool = False
    ) -> TailOpened:
        """Makes the worker ready. Raises RemoteError (no_model, mismatch, ...) or TransportError."""
        request = TailOpen(
            self.sequence, self.first, self.stop, head, fingerprint, ubatch_tokens, tuple(keys)
        )
        self.opened = opened = self.connection.link.exchange(request, OPEN_DEADLINE_S)
        self.observe(ubatch_tokens, opened.layer_us * (self.stop - self.first) / 1e6)
        return opened


def bring_up(stage: Stage, state: Sequence, position: int) -> None:
    """Gives the worker what its mirror lacks of a sequence that stands at `position`: rows, then recurrent states.

    Raises RemoteError, TransportError or WorkerLost.
    """
    assert stage.opened is not None
    link, sequence = stage.connection.link, stage.sequence
    rows = min(stage.opened.rows, position)
    if rows == position and (position == 0 or position in stage.opened.states):
        link.exchange(TailRewind(sequence, position))
        return
    link.exchange(TailRewind(sequence, rows))
    tags: deque[int] = deque()

    def sent(request: Any) -> None:
        tags.append(link.post(request))
        while len(tags) > IN_FLIGHT:
            link.wait(tags.popleft(), OPEN_DEADLINE_S)

    for layer, pages in state.table.layers.items():
        if not stage.first <= layer < stage.stop:
            continue
        piece = max(1, PIECE_BYTES // state.table.geometry.row_bytes)
        start = rows
        while start < position:
            left_of_page = state.table.geometry.page_tokens - start % state.table.geometry.page_tokens
            count = min(piece, position - start, left_of_page)
            k, v = state.rows(layer, start, count)
            sent(PutRows(sequence, layer, start, k, v))
            start += count
        assert pages.offset >= position
    for layer in state.recurrent_layers:
        if stage.first <= layer < stage.stop:
            conv, recurrent = state.caches[layer].cache
            if conv is None:
                continue
            mx.eval(conv, recurrent)
            sent(PutState(sequence, layer, position, to_numpy(conv), to_numpy(recurrent)))
    while tags:
        link.wait(tags.popleft(), OPEN_DEADLINE_S)


@dataclass(slots=True)
class _Chunk:
    position: int
    tokens: int
    key: bytes | None
    rows: bool
    sent_s: float = 0.0
    tag: int = 0


class _Collector(threading.Thread):
    """Takes one stage's acks as they come, so that its worker never waits for somebody to read, and passes them on."""

    def __init__(self, read: "TailRead", number: int, stage: Stage) -> None:
        super().__init__(name=f"tail-{number}", daemon=True)
        self._read = read
        self._number = number
        self.stage = stage
        self._chunks: deque[_Chunk] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def send(self, chunk: _Chunk, residual: npt.NDArray[Any]) -> None:
        """Posts a chunk. Raises TransportError."""
        request = TailChunk(self.stage.sequence, chunk.position, residual, chunk.key, chunk.rows, False, None)
        mine = _Chunk(chunk.position, chunk.tokens, chunk.key, chunk.rows, time.monotonic())
        mine.tag = self.stage.connection.link.post(request)
        with self._changed:
            self._chunks.append(mine)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        stage, read = self.stage, self._read
        while True:
            with self._changed:
                while not self._chunks:
                    if self._ended:
                        return
                    self._changed.wait()
                chunk = self._chunks.popleft()
                ahead = 1 + len(self._chunks)
            try:
                ack = stage.connection.link.wait(chunk.tag, stage.deadline_s(chunk.tokens * ahead))
                assert isinstance(ack, TailAck)  # the link has checked it
                stage.observe(chunk.tokens * ahead, time.monotonic() - chunk.sent_s)
                read.arrived(self._number, chunk, ack)
            except BackburnerError as e:
                read.fail(e)
                self._drain()
                return
            except Exception as e:  # a fault of ours must not leave the engine waiting
                log.exception("collecting a tail's rows failed")
                read.fail(TransportError(f"{type(e).__name__}: {e}"))
                return

    def _drain(self) -> None:
        """Takes what will still be answered off the link."""
        with self._changed:
            chunks, self._ended = list(self._chunks), True
        for chunk in chunks:
            with contextlib.suppress(BackburnerError):
                self.stage.connection.link.wait(chunk.tag, self.stage.deadline_s(chunk.tokens))


class TailRead:
    """One read whose tail layers run on workers, some ubatches behind the host.

    The host's caches of tail layers get their rows as they arrive; their recurrent states stay at `base` until the
    read ends, and `recover` goes on from there when a worker is lost. All methods but `arrived` and `fail` are for the
    engine's thread.
    """

    def __init__(
        self,
        model: HybridModel,
        state: Sequence,
        stages: Items[Stage],
        start: int,
        last_start: int,
        residual_bytes_max: int = RESIDUAL_BYTES_MAX,
    ) -> None:
        """start: where the read begins. last_start: where its last ubatch does, which the host runs itself."""
        self._model = model
        self._state = state
        self.stages = tuple(stages)
        self.seam = stages[0].first
        self._last_start = last_start
        self._residual_bytes_max = residual_bytes_max
        self._base = Checkpoint(start, self._tail_states())
        self._residuals: deque[tuple[int, npt.NDArray[Any]]] = deque()  # since the base
        self._pushed = start
        self._coming_base: tuple[int, dict[int, tuple[Stage, int]]] | None = None
        self._state_tags: dict[int, tuple[Stage, int]] = {}  # by layer, of the last chunk
        self._changed = threading.Condition()
        self._acks: deque[tuple[int, TailAck]] = deque()  # by stage, not yet absorbed
        self._acked = [start] * len(self.stages)  # positions that each stage has run
        self._failed: BackburnerError | None = None
        self.worker_s = 0.0  # what the stages have spent computing
        self.tokens = 0  # that they have run
        self._collectors = [_Collector(self, n, stage) for n, stage in enumerate(self.stages)]
        for collector in self._collectors:
            collector.start()

    def _tail_states(self) -> dict[int, list[Any]]:
        return {i: list(self._state.caches[i].cache) for i in self._tail(self._state.recurrent_layers)}

    def _tail(self, layers: Items[int]) -> list[int]:
        return [i for i in layers if i >= self.seam]

    # -- called by collectors -------------------------------------------------------------------------------------

    def arrived(self, number: int, chunk: _Chunk, ack: TailAck) -> None:
        """A stage has run a chunk: its rows are kept for `push`, its residual goes to the next stage."""
        end = chunk.position + chunk.tokens
        if ack.position != end:
            raise ProtocolError(f"a tail stands at {ack.position} after a chunk that ends at {end}")
        if number + 1 < len(self.stages):
            if ack.residual is None:
                raise ProtocolError("a stage of a chain sent no residual")
            self._collectors[number + 1].send(chunk, ack.residual)
        with self._changed:
            self._acks.append((number, ack))
            self._acked[number] = end
            self.worker_s += ack.seconds
            if number == 0:
                self.tokens += chunk.tokens
            self._changed.notify_all()

    def fail(self, error: BackburnerError) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    # -- called by the engine -------------------------------------------------------------------------------------

    def push(self, position: int, residual: mx.array, key: bytes | None) -> None:
        """Sends an evaluated residual [1, T, hidden] that has left the head. Waits while the tail is too far behind.

        Raises TailLost, after which `recover` has to be called.
        """
        rows = to_numpy(residual)[0]
        self._residuals.append((position, rows))
        self._pushed = end = position + rows.shape[0]
        self._wait_until(lambda: self._acked[-1] >= self._oldest_allowed())
        self._absorb()
        try:
            if end == self._last_start:
                self._state_tags = self._ask_states(end, all_layers=True)
            elif self._coming_base is None and self._kept_bytes() > self._residual_bytes_max:
                self._coming_base = end, self._ask_states(end, all_layers=False)
            # The last chunk's rows come layer by layer.
            chunk = _Chunk(position, rows.shape[0], key, rows=end != self._last_start)
            self._collectors[0].send(chunk, rows)
        except TransportError as e:
            raise TailLost(str(e)) from e
        self._move_base()

    def _oldest_allowed(self) -> int:
        """Where the last stage has to be by now."""
        behind = IN_FLIGHT + len(self.stages) - 1
        recent = list(self._residuals)[-behind:]
        return recent[0][0] if len(recent) == behind else 0

    def _wait_until(self, condition: Any) -> None:
        with self._changed:
            # No deadline here: each ack has one in its collector, which tells of every end.
            self._changed.wait_for(lambda: self._failed is not None or condition())
            if self._failed is not None:
                raise TailLost(str(self._failed)) from self._failed

    def _kept_bytes(self) -> int:
        return sum(rows.nbytes for _, rows in self._residuals)

    def _ask_states(self, position: int, all_layers: bool) -> dict[int, tuple[Stage, int]]:
        """Before the chunk that ends at `position`: each layer's answer leaves as soon as that chunk has left it."""
        tags = {}
        recurrent = set(self._state.recurrent_layers)
        for stage in self.stages:
            for layer in range(stage.first, stage.stop):
                if all_layers or layer in recurrent:
                    tag = stage.connection.link.post(GetState(stage.sequence, layer, position))
                    tags[layer] = stage, tag
        return tags

    def _absorb(self) -> None:
        """Puts the rows that have arrived into the host's pages."""
        with self._changed:
            acks = list(self._acks)
            self._acks.clear()
        layers = self._state.table.layers
        for number, ack in acks:
            stage = self.stages[number]
            mine = [i for i in layers if stage.first <= i < stage.stop]
            if ack.position == self._last_start:
                continue  # its rows come layer by layer
            if ack.k is None or ack.v is None or len(ack.k) != len(mine):
                raise TailLost("a worker sent no rows with its ack")
            for n, layer in enumerate(mine):
                layers[layer].append(ack.k[n], ack.v[n])

    def _move_base(self) -> None:
        """In a long read: when the states of a later position are there, what led to it can be forgotten."""
        if self._coming_base is None or self._acked[-1] < self._coming_base[0]:
            return
        position, tags = self._coming_base
        self._coming_base = None
        self._absorb()
        states = {layer: self._state_of(stage, tag) for layer, (stage, tag) in tags.items()}
        self._base = Checkpoint(
            position, {i: [from_numpy(a, self._model.dtype) for a in s] for i, s in states.items()}
        )
        while self._residuals and self._residuals[0][0] < position:
            self._residuals.popleft()

    def _state_of(self, stage: Stage, tag: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        behind = max(1, self._pushed - self._acked[-1])
        try:
            reply = stage.connection.link.wait(tag, stage.deadline_s(behind))
        except BackburnerError as e:
            raise TailLost(str(e)) from e
        assert isinstance(reply, StateReply)
        return reply.first, reply.second

    def finish(self, residual: mx.array) -> tuple[mx.array, dict[int, list[Any]]]:
        """The last ubatch's residual [1, T, hidden] through the tail on the host, one layer behind the worker.

        Returns the residual after the last layer, and the tail's recurrent states at the ubatch's start.
        Raises TailLost.
        """
        state, model = self._state, self._model
        start_of_last = self._residuals[-1][0] if self._residuals else self._last_start
        self._wait_until(lambda: min(self._acked) >= start_of_last)
        self._absorb()
        states: dict[int, list[Any]] = {}
        for layer in range(self.seam, len(state.caches)):
            stage, tag = self._state_tags.pop(layer)
            first, second = self._state_of(stage, tag)
            if layer in state.table.layers:
                state.table.layers[layer].append(first, second)
            else:
                states[layer] = [from_numpy(first, model.dtype), from_numpy(second, model.dtype)]
                state.caches[layer].cache = list(states[layer])
            residual = model.run_layers(residual, state.caches, layer, layer + 1)
        self._wait_until(lambda: min(self._acked) >= self._last_start)
        self._end()
        return residual, states

    def recover(self) -> None:
        """Runs on the host what the workers have not finished: afterwards all layers stand where the head does.

        Raises WorkerLost when a page that is needed for that is nowhere any more.
        """
        log.warning("the tail of this read goes on here: %s", self._failed or "the worker was given up")
        self.abandon()
        state, model, table = self._state, self._model, self._state.table
        held = table.held
        full, rest = divmod(self._base.position, table.geometry.page_tokens)
        if rest and full < held and state.held is not None:
            state.held.fetch(table, full)
        # Ubatches are run again that lie before the end of what is held: they must not see what comes after them.
        table.held = min(held, full)
        for layer in self._tail(list(table.layers)):
            table.layers[layer].truncate(self._base.position)
        for layer, kept in self._base.states.items():
            state.caches[layer].cache = list(kept)
        for _, rows in self._residuals:
            residual = model.run_layers(
                from_numpy(rows, model.dtype)[None], state.caches, self.seam, len(state.caches)
            )
            mx.eval(residual, [state.caches[i].cache for i in self._base.states])
        table.drop_to(held)

    def abandon(self) -> None:
        """Nobody wants the rest: collectors end, and no reply stays on a link."""
        self.fail(TailLost("given up"))
        self._end()
        waiting = [*self._state_tags.values()]
        if self._coming_base is not None:
            waiting += self._coming_base[1].values()
        for stage, tag in waiting:
            with contextlib.suppress(BackburnerError):
                stage.connection.link.wait(tag, stage.deadline_s(max(1, self._pushed - self._acked[-1])))
        self._state_tags, self._coming_base = {}, None

    def _end(self) -> None:
        for collector in self._collectors:
            collector.end()


def numpy_logits(ack: TailAck, vocab_size: int) -> npt.NDArray[np.float32]:
    """[vocab] of an ack that carries all logits or the largest; the others are -inf."""
    assert ack.logits is not None
    logits = ack.logits
    if logits.dtype == np.uint16:  # the bits of bfloat16
        logits = (logits.astype(np.uint32) << 16).view(np.float32)
    if ack.ids is None:
        return logits.astype(np.float32)
    full = np.full(vocab_size, -np.inf, np.float32)
    full[ack.ids] = logits
    return full
