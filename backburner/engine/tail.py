"""The host's side of a split read: residuals out to the workers that run the tail layers, rows and states back."""

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy.typing as npt

from backburner.engine.sequence import Checkpoint, Sequence
from backburner.engine.stage import IN_FLIGHT, LeftThere, Stage
from backburner.errors import BackburnerError, ProtocolError, TransportError
from backburner.model.arrays import from_numpy, to_numpy
from backburner.model.hybrid import HybridModel
from backburner.transport.messages import GetState, StateReply, TailAck, TailChunk
from backburner.transport.replies import checked_tensor

log = logging.getLogger("backburner.engine")

# What is kept of residuals, to run the tail on the host when the worker is lost. Then the worker's states are asked
# for in the middle of a read, so that older residuals can go. 256 MiB are 25,000 tokens of a 27B model.
RESIDUAL_BYTES_MAX = 256 * 2**20

State = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # the two tensors of a StateReply


class TailLost(BackburnerError):
    """A worker cannot go on with the tail of this read. The host can."""

    code = "tail_lost"


@dataclass(frozen=True, slots=True)
class _Chunk:
    position: int
    tokens: int
    key: bytes | None
    rows: bool
    states: frozenset[int]  # layers that are asked for what the chunk leaves there
    sent_s: float = 0.0
    tag: int = 0

    @property
    def end(self) -> int:
        return self.position + self.tokens


class _Collector(threading.Thread):
    """Takes one stage's acks as they come, so that its worker never waits for somebody to read, and passes them on.

    When it ends it leaves nothing on the link: neither an ack nor a state that nobody has taken.
    """

    def __init__(self, read: "TailRead", number: int, stage: Stage) -> None:
        super().__init__(name=f"tail-{number}", daemon=True)
        self._read = read
        self._number = number
        self.stage = stage
        self._chunks: deque[_Chunk] = deque()
        self._changed = threading.Condition()
        self._sending = False  # a chunk whose ack will have to be taken
        self._ended = False

    def send(self, chunk: _Chunk, residual: npt.NDArray[Any]) -> None:
        """Asks for the states that the chunk will leave, and posts it. Raises TransportError, or TailLost when the
        rest of the read is not wanted."""
        with self._changed:
            if self._ended:
                raise TailLost("the read goes on without this stage")
            self._sending = True
        try:
            self._post(chunk, residual)
        finally:
            with self._changed:
                self._sending = False
                self._changed.notify()

    def _post(self, chunk: _Chunk, residual: npt.NDArray[Any]) -> None:
        stage, link = self.stage, self.stage.connection.link
        # Not earlier: should the chunk never come, because a stage before this one failed, nobody would answer.
        for layer in sorted(chunk.states):
            if stage.first <= layer < stage.stop:
                tag = link.post(GetState(stage.sequence, layer, chunk.end))
                self._read.asked(stage, layer, chunk.end, tag)
        sent_s = time.monotonic()
        request = TailChunk(stage.sequence, chunk.position, residual, chunk.key, chunk.rows, False, None)
        mine = replace(chunk, sent_s=sent_s, tag=link.post(request))
        with self._changed:
            self._chunks.append(mine)

    def end(self) -> None:
        """Nobody wants more of this stage."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        while (taken := self._next()) is not None:
            chunk, ahead = taken
            try:
                self._take(chunk, chunk.tokens * ahead)
            except BackburnerError as e:
                self._fail(e)
            except Exception as e:  # a fault of ours must not leave the engine waiting
                log.exception("collecting a tail's rows failed")
                self._fail(TransportError(f"{type(e).__name__}: {e}"))
        for tag in self._read.not_taken(self.stage):  # arrived or refused before the acks
            with contextlib.suppress(BackburnerError):
                self.stage.connection.link.wait(tag)

    def _next(self) -> tuple[_Chunk, int] | None:
        """The oldest chunk whose ack was not taken, and how many there are."""
        with self._changed:
            while not self._chunks:
                if self._ended and not self._sending:
                    return None
                self._changed.wait()
            return self._chunks.popleft(), 1 + len(self._chunks)

    def _take(self, chunk: _Chunk, tokens: int) -> None:
        """Waits until the stage has run so many tokens, the chunk's the last of them, and passes the ack on."""
        stage = self.stage
        ack = stage.connection.link.wait(chunk.tag, stage.deadline_s(tokens))
        assert isinstance(ack, TailAck)  # the link has checked it
        stage.observe(tokens, time.monotonic() - chunk.sent_s)
        if not self._ended:
            self._read.arrived(self._number, chunk, ack)

    def _fail(self, error: BackburnerError) -> None:
        if isinstance(error, ProtocolError):
            self.stage.connection.link.give_up(str(error))
        self._read.fail(error)
        self.end()


class TailRead:
    """One read whose tail layers run on workers, some ubatches behind the host.

    The host's caches of tail layers get their rows as they arrive; their recurrent states stay at `base` until the
    read ends, and `recover` goes on from there when a worker is lost.
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
        assert start < last_start, "nothing for the workers to run"
        self._model = model
        self._state = state
        self.stages = tuple(stages)
        self.left = LeftThere(self.stages, weakref.ref(state.table))
        self.seam = stages[0].first
        self._last_start = last_start
        self._residual_bytes_max = residual_bytes_max
        self._base = Checkpoint(start, self._tail_states())
        self._residuals: deque[tuple[int, npt.NDArray[Any]]] = deque()  # since the base
        self._pushed = start
        self._coming_base: int | None = None  # where the states were asked for that will be the next one's
        self._changed = threading.Condition()  # guards what collectors change: all up to `tokens`
        self._state_tags: dict[tuple[int, int], tuple[Stage, int]] = {}  # by layer and position
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

    def _attention_layers(self, number: int) -> list[int]:
        """Of a stage: those whose rows come with its acks."""
        stage = self.stages[number]
        return [i for i in self._state.table.layers if stage.first <= i < stage.stop]

    # -- called by collectors -------------------------------------------------------------------------------------

    def arrived(self, number: int, chunk: _Chunk, ack: TailAck) -> None:
        """A stage has run a chunk: its rows are kept for `push`, its residual goes to the next stage."""
        if ack.position != chunk.end:
            raise ProtocolError(f"a tail stands at {ack.position} after a chunk that ends at {chunk.end}")
        geometry, hidden = self._state.table.geometry, self._model.hidden_size
        if chunk.rows:
            layers = len(self._attention_layers(number))
            shape = layers, geometry.kv_heads, chunk.tokens, geometry.head_dim
            checked_tensor("rows", ack.k, geometry.dtype, shape)  # a TailAck's v is like its k
        if number + 1 < len(self.stages):
            residual = checked_tensor("a residual", ack.residual, geometry.dtype, (chunk.tokens, hidden))
            self._collectors[number + 1].send(chunk, residual)
        with self._changed:
            self._acks.append((number, ack))
            self._acked[number] = chunk.end
            self.worker_s += ack.seconds
            if number == 0:
                self.tokens += chunk.tokens
            self._changed.notify_all()

    def asked(self, stage: Stage, layer: int, position: int, tag: int) -> None:
        """A stage was asked for what a layer leaves at a position: there is a tag to wait for."""
        with self._changed:
            self._state_tags[layer, position] = stage, tag
            self._changed.notify_all()

    def not_taken(self, stage: Stage) -> list[int]:
        """Tags of what a stage was asked for and the engine did not wait for; it will not."""
        with self._changed:
            keys = [key for key, (asked, _) in self._state_tags.items() if asked is stage]
            return [self._state_tags.pop(key)[1] for key in keys]

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
        last = end == self._last_start
        states: list[int] = []
        if last:
            states = list(range(self.seam, len(self._state.caches)))
        elif self._coming_base is None and self._kept_bytes() > self._residual_bytes_max:
            self._coming_base, states = end, self._tail(self._state.recurrent_layers)
        # The last chunk's rows come layer by layer.
        chunk = _Chunk(position, rows.shape[0], key, not last, frozenset(states))
        try:
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

    def _absorb(self) -> None:
        """Puts the rows that have arrived into the host's pages."""
        with self._changed:
            acks = list(self._acks)
            self._acks.clear()
        layers = self._state.table.layers
        for number, ack in acks:
            if ack.position == self._last_start:
                continue  # its rows come layer by layer
            assert ack.k is not None  # `arrived` has checked them
            assert ack.v is not None
            for layer, k, v in zip(self._attention_layers(number), ack.k, ack.v, strict=True):
                layers[layer].append(k, v)

    def _move_base(self) -> None:
        """In a long read: when the states of a later position are there, what led to it can be forgotten."""
        position = self._coming_base
        if position is None or self._acked[-1] < position:
            return
        self._coming_base = None
        self._absorb()
        layers = self._tail(self._state.recurrent_layers)
        states = {layer: self._state_of(layer, position) for layer in layers}
        self._base = Checkpoint(
            position, {i: [from_numpy(a, self._model.dtype) for a in s] for i, s in states.items()}
        )
        while self._residuals and self._residuals[0][0] < position:
            self._residuals.popleft()

    def _state_of(self, layer: int, position: int) -> State:
        """What a layer left at a position where it was asked for."""
        asked = layer, position
        with self._changed:
            self._wait_until(lambda: asked in self._state_tags)
            stage, tag = self._state_tags.pop(asked)
        behind = max(1, self._pushed - self._acked[-1])
        try:
            reply = stage.connection.link.wait(tag, stage.deadline_s(behind))
            assert isinstance(reply, StateReply)  # the link has checked it
            return self._checked_state(layer, position, reply)
        except BackburnerError as e:
            if isinstance(e, ProtocolError):
                stage.connection.link.give_up(str(e))
            raise TailLost(str(e)) from e

    def _checked_state(self, layer: int, position: int, reply: StateReply) -> State:
        """Of a recurrent layer conv and recurrent, of an attention layer the k and v that follow the rows here. Raises
        ProtocolError."""
        first, second = reply.first, reply.second
        model, geometry = self._model, self._state.table.geometry
        pages = self._state.table.layers.get(layer)
        if pages is None:
            checked_tensor("a conv state", first, geometry.dtype, model.conv_shape)
            checked_tensor("a recurrent state", second, "float32", model.recurrent_shape)
        else:
            shape = geometry.kv_heads, position - pages.offset, geometry.head_dim
            checked_tensor("rows", first, geometry.dtype, shape)
            checked_tensor("rows", second, geometry.dtype, shape)
        return first, second

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
            first, second = self._state_of(layer, self._last_start)
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
        """Nobody wants the rest: collectors take what is still answered off the links, and end."""
        self.fail(TailLost("given up"))
        self._end()

    def _end(self) -> None:
        self.left.over = True
        for collector in self._collectors:
            collector.end()
