"""A runner for a host that cannot hold the model: its head layers here, the others and the output head on a worker."""

import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from backburner.attention.engine import F32, AttentionEngine, Geometry
from backburner.attention.numpy_engine import widen
from backburner.engine.grammar import Grammars
from backburner.engine.request import GenerationRequest, RunnerStatus, WorkerStatus
from backburner.engine.sampling import Chosen, Sampler, Score, logits_needed
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.sequence import CHECKPOINT_TOKENS, Sequence, common_prefix
from backburner.engine.sessions import SESSIONS_MAX, Sessions
from backburner.engine.stage import IN_FLIGHT, Stage
from backburner.engine.text import TextStream, token_bytes
from backburner.engine.worker_link import WorkerLink
from backburner.errors import (
    BackburnerError,
    ProtocolError,
    TransportError,
    UnknownPage,
    Unsupported,
    WorkerLost,
)
from backburner.kv.pages import PageTable
from backburner.model.arrays import to_numpy
from backburner.model.fingerprint import rows_fingerprint
from backburner.model.load import LoadedModel
from backburner.transport.messages import TailAck, TailChunk, TailRewind
from backburner.transport.replies import checked_tensor

log = logging.getLogger("backburner.engine")

# Nothing can be generated without the worker, so a lost one is waited for: a cable that was touched is back in seconds,
# an app that was started again in ten.
RETURN_DEADLINE_S = 30.0

R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _State:
    """A sequence's head here, and the stage that runs its tail."""

    sequence: Sequence
    request: GenerationRequest
    stage: Stage | None = None
    done: int = 0  # tokens that have run here and were sent on
    # Tag, tokens and end of chunks not yet answered.
    waiting: deque[tuple[int, int, int]] = field(default_factory=deque)

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens


def _give_up(state: _State) -> None:
    """Frees the rows at once, also where somebody still refers to the state, as the traceback of a failed step does."""
    state.sequence.table.truncate(0)


class SplitDecodeRunner:
    """Implements `engine.Runner`. Both sides make checkpoints at the same positions, and go back to them together."""

    def __init__(
        self,
        loaded: LoadedModel,
        tokenizer: Any,
        engine: AttentionEngine,
        geometry: Geometry,
        ctx_size: int,
        worker: WorkerLink,
        layers: int,
        fingerprint: Callable[[int, int], bytes],
        sessions: int = SESSIONS_MAX,
        host_tokens: int | None = None,
    ) -> None:
        """loaded: the head layers alone. layers: of the whole model. fingerprint: of [first, stop) with the head.
        host_tokens: positions whose K and V fit on this host; None: as many as the context has."""
        self.ctx_size = ctx_size
        self._host_tokens = ctx_size if host_tokens is None else host_tokens
        self._model = loaded.model
        self._seam = loaded.model.kept_layers.stop
        self._layers = layers
        self._tokenizer = tokenizer
        self._end = frozenset(tokenizer.eos_token_ids)
        self._grammars = Grammars(tokenizer, loaded.model.vocab_size)
        self._engine = engine
        self._geometry = geometry
        self._fingerprint = rows_fingerprint(loaded.model.fingerprint, geometry, engine.name, UBATCH_TOKENS)
        self._tail_fingerprint = fingerprint(self._seam, layers)
        self._ids = itertools.count(1)
        self.worker = worker
        self.sessions: Sessions[_State] = Sessions(_give_up, sessions)

    # -- the engine's protocol ------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        state = self.start(GenerationRequest("warm-up", (0,) * 32, 1))
        self.prefill(state, 0, 32)
        self.decode(state)

    def start(self, request: GenerationRequest) -> _State:
        if request.prompt_logprobs:
            raise Unsupported(
                "This host runs the first layers only: it can give no log probabilities of the prompt's tokens."
            )
        sampler = Sampler(request, self._model.vocab_size, self._grammars.guide(request.grammar))
        prompt = list(request.prompt)
        limit = len(prompt) - 1

        state = self.sessions.take(prompt, lambda kept, common: kept.sequence.saves(min(common, limit)))
        state = state or self._new_state(request, sampler)
        sequence = state.sequence
        state.request, sequence.sample = request, sampler
        common = min(common_prefix(sequence.tokens, prompt), limit) if state.done else 0
        sequence.tokens, sequence.prompt_tokens = prompt, len(prompt)
        sequence.read_from = self._on_worker(state, lambda: self._open(state, common))
        return state

    def text(self, request: GenerationRequest) -> TextStream:
        return TextStream(self._tokenizer, request.stop)

    def read_from(self, state: _State) -> int:
        return state.sequence.read_from

    def step_tokens(self, state: _State) -> int:
        return UBATCH_TOKENS

    def token_bytes(self, token: int) -> bytes:
        return token_bytes(self._tokenizer, token)

    def prefill(self, state: _State, start: int, stop: int) -> Chosen | None:
        logits = self.read(state, start, stop)
        return None if logits is None else self._choose(state, logits)

    def prompt_scores(self, state: _State) -> list[Score]:
        raise NotImplementedError  # `start` has refused the request

    def decode(self, state: _State) -> Chosen:
        return self._choose(state, self.run_token(state))

    def is_end(self, token: int) -> bool:
        return token in self._end

    def finish(self, state: _State) -> None:
        stage = state.stage
        while state.waiting and stage is not None:  # cancelled, or failed: no reply may stay on the link
            try:
                self._ack(stage, state.waiting)
            except BackburnerError as e:
                if not state.sequence.failed:
                    log.warning("a cancelled conversation is not kept: %s", e)
                state.sequence.failed = True
        if state.sequence.failed or not state.sequence.checkpoints.positions:
            _give_up(state)
        else:
            self.sessions.put(state)

    def worker_statuses(self) -> tuple[WorkerStatus, ...]:
        return (self.worker.status(),)

    def status(self) -> RunnerStatus:
        return RunnerStatus(sessions=len(self.sessions), seam=self._seam)

    def close(self) -> None:
        self.worker.close()

    def leave_thread(self) -> None:
        mx.clear_streams()

    # -- steps ----------------------------------------------------------------------------------------------------

    def read(self, state: _State, start: int, stop: int) -> mx.array | None:
        """Reads prompt tokens [start, stop). After the prompt's end, logits [vocab]."""
        return self._on_worker(state, lambda: self._run_to(state, stop))

    def run_token(self, state: _State) -> mx.array:
        """Runs the newest token: logits [vocab]."""
        logits = self._on_worker(state, lambda: self._run_to(state, len(state.tokens)))
        assert logits is not None
        return logits

    def _run_to(self, state: _State, stop: int) -> mx.array | None:
        """Everything from `done` on, in the steps that it was or will be computed in: whole ubatches of the prompt,
        then one token after the other. So a worker that had lost all of it gives the same bits again."""
        self._make_room(stop)
        sequence, stage = state.sequence, state.stage
        if stage is None or not stage.connection.alive:
            raise TransportError("the link is closed")
        prompt = sequence.prompt_tokens
        last_start = (prompt - 1) // UBATCH_TOKENS * UBATCH_TOKENS
        link = stage.connection.link
        waiting, ack = state.waiting, None
        position = state.done
        while position < stop:
            if position < prompt:
                end = min(stop, prompt, position // UBATCH_TOKENS * UBATCH_TOKENS + UBATCH_TOKENS)
            else:
                end = position + 1
            keep = end == last_start or (end <= last_start and end % CHECKPOINT_TOKENS == 0)
            residual = self._model.embed(mx.array(np.asarray(sequence.tokens[position:end], np.int32)))
            residual = self._model.run_layers(residual, sequence.caches, 0, self._seam)
            mx.eval(residual, [sequence.caches[i].cache for i in sequence.recurrent_layers])
            if keep:
                sequence.keep(end)
            whole = end <= prompt and end % UBATCH_TOKENS == 0
            key = sequence.name_ubatches(end)[-1] if whole else None
            top = logits_needed(state.request) if end == stop and end >= prompt else None
            rows = to_numpy(residual)[0]
            waiting.append(
                (
                    link.post(TailChunk(stage.sequence, position, rows, key, False, keep, top)),
                    end - position,
                    end,
                )
            )
            while len(waiting) > IN_FLIGHT:
                ack = self._ack(stage, waiting)
            state.done = position = end
        if stop < prompt:
            return None  # the tail may go on behind
        while waiting:
            ack = self._ack(stage, waiting)
        assert ack is not None, "the step has run nothing"
        top = logits_needed(state.request)
        return mx.array(_numpy_logits(ack, self._model.vocab_size, top, self._geometry.dtype))

    def _make_room(self, tokens: int) -> None:
        """The running conversation, of so many tokens, fits by itself; kept ones stay as far as there is room."""
        while tokens + sum(kept.sequence.table.tokens for kept in self.sessions) > self._host_tokens:
            if not self.sessions.drop_oldest():
                break

    def _ack(self, stage: Stage, waiting: deque[tuple[int, int, int]]) -> TailAck:
        ahead = sum(tokens for _, tokens, _ in waiting)
        tag, _, end = waiting.popleft()
        ack = stage.connection.link.wait(tag, stage.deadline_s(ahead))
        assert isinstance(ack, TailAck)  # the link has checked it
        if ack.position != end:
            raise ProtocolError(f"a tail stands at {ack.position} after a chunk that ends at {end}")
        stage.observe(ahead, ack.seconds)
        return ack

    def _choose(self, state: _State, logits: mx.array) -> Chosen:
        chosen = state.sequence.sample(logits)
        state.tokens.append(chosen.token)
        return chosen

    # -- the worker, there and away -------------------------------------------------------------------------------

    def _new_state(self, request: GenerationRequest, sampler: Sampler) -> _State:
        model = self._model
        layers = [i for i in model.attention_layers if i < self._seam]
        table = PageTable(self._engine, self._geometry, layers, self._fingerprint)
        caches = [table.layers[i] if i in table.layers else model.new_state() for i in range(self._seam)]
        sequence = Sequence(0, [], caches, table, None, sampler, self._fingerprint)
        return _State(sequence, request)

    def _open(self, state: _State, position: int) -> int:
        """Both sides go back to the last checkpoint at or before `position` that both have; where that is."""
        connection = self.worker.connection
        if connection is None:
            raise TransportError("the worker is away")
        sequence = state.sequence
        stage = state.stage = Stage(connection, self._seam, self._layers, next(self._ids))
        state.waiting.clear()
        keys = sequence.name_ubatches(min(position, sequence.prompt_tokens))
        opened = stage.open(self._tail_fingerprint, UBATCH_TOKENS, keys, head=True)
        shared = set(opened.states) & set(sequence.checkpoints.positions)
        target = max((p for p in shared if p <= position), default=0)
        # `rewind` goes to the newest checkpoint before a position; the worker may lack that one.
        sequence.checkpoints.forget_after(target)
        state.done = sequence.rewind(target)
        connection.link.exchange(TailRewind(stage.sequence, state.done))
        return state.done

    def _on_worker(self, state: _State, step: Callable[[], R]) -> R:
        """Does a step. A conversation whose step fails for good is not kept."""
        try:
            return self._or_again(state, step)
        except BaseException:
            state.sequence.failed = True
            raise

    def _or_again(self, state: _State, step: Callable[[], R]) -> R:
        """Does a step; when the worker is lost in it, waits for its return and does what is missing again."""
        try:
            return step()
        except (TransportError, UnknownPage) as e:
            log.warning("the worker that runs the other layers is lost: %s", e)
            if state.stage is not None:
                state.stage.connection.link.close()
            if not self.worker.await_arrival(RETURN_DEADLINE_S):
                raise WorkerLost(
                    f"The worker that runs most of this model is away: {self.worker.lost}. "
                    "Send the request again when it is back."
                ) from e
            try:
                self._open(state, state.done)
                return step()
            except TransportError as again:
                raise WorkerLost(f"The worker was lost again: {again}. Send the request again.") from again


def _numpy_logits(ack: TailAck, vocab_size: int, top: int, dtype: str) -> F32:
    """[vocab] of an ack that was asked for all logits (top = 0), or for the `top` largest: the others are -inf then.

    dtype: of the activations. Raises ProtocolError.
    """
    count = min(top, vocab_size) or vocab_size
    logits = widen(checked_tensor("logits", ack.logits, dtype, (count,)))
    if top == 0:
        return logits
    ids = checked_tensor("ids", ack.ids, "int32", (count,))
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ProtocolError(f"a worker sent logits of tokens that are not among the model's {vocab_size}")
    full = np.full(vocab_size, -np.inf, np.float32)
    full[ids] = logits
    return full
