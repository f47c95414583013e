"""Runs one step of one sequence: ubatches of a read, or one token. Everything here is on the engine thread."""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.config import SPLIT_MIN_TOKENS
from backburner.engine.grammar import Grammars
from backburner.engine.request import GenerationRequest, RunnerStatus, WorkerStatus
from backburner.engine.sampling import Chosen, Sampler, Score
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.scores import PromptScores
from backburner.engine.seam import ReadCounts, SeamChooser
from backburner.engine.sequence import CHECKPOINT_TOKENS, Checkpoint, Sequence, common_prefix
from backburner.engine.sessions import SESSIONS_MAX, Sessions
from backburner.engine.tail import TailLost, TailRead
from backburner.engine.text import TextStream, token_bytes
from backburner.engine.worker_link import RETRY_GREETING_S, WorkerLink
from backburner.errors import BackburnerError, HostFull, WorkerLost
from backburner.kv.held import OVERDUE_PAGES, HeldPages
from backburner.kv.pages import PageTable
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.model.fingerprint import rows_fingerprint
from backburner.model.load import LoadedModel

log = logging.getLogger("backburner.engine")

# More than one chunk of the delta rule; enough to compile what a read and a decode use.
WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a host's work may go besides the host itself."""

    workers: Items[WorkerLink] = ()
    residency: Residency | None = None  # None: without workers nothing leaves
    spill: Spill | None = None
    overdue_pages: int = OVERDUE_PAGES
    split_tokens_min: int = SPLIT_MIN_TOKENS  # shorter reads stay on the host
    split_layer: int | None = 0  # None: chosen from measured speeds; 0: reads are not split
    fingerprint: Callable[[int, int], bytes] | None = (
        None  # of layers [first, stop); None: reads are not split
    )
    cycle: int = 4  # layers between two seams
    host_tokens: int | None = (
        None  # positions whose K and V fit on this host; None: as many as the context has
    )
    sessions: int = SESSIONS_MAX  # conversations kept for their next request


class ModelRunner:
    """Implements `engine.Runner` with a model, an attention engine and, it may be, workers."""

    def __init__(
        self,
        loaded: LoadedModel,
        tokenizer: Any,
        engine: AttentionEngine,
        geometry: Geometry,
        ctx_size: int,
        placement: Placement | None = None,
    ) -> None:
        self.ctx_size = ctx_size
        self._model = loaded.model
        self._tokenizer = tokenizer
        self._end = frozenset(tokenizer.eos_token_ids)
        self._grammars = Grammars(tokenizer, loaded.model.vocab_size)
        self._engine = engine
        self._geometry = geometry
        self._fingerprint = rows_fingerprint(loaded.model.fingerprint, geometry, engine.name, UBATCH_TOKENS)
        self._placement = placement = placement or Placement()
        self.workers = tuple(placement.workers)
        self._spill = placement.spill
        self._host_tokens = placement.host_tokens if placement.host_tokens is not None else ctx_size
        self._ids = itertools.count(1)
        self.sessions: Sessions[Sequence] = Sessions(self._give_up, placement.sessions)
        self._seam: SeamChooser | None = None
        if placement.fingerprint is not None and self.workers:
            row_bytes = geometry.row_bytes * len(self._model.attention_layers)
            residual_bytes = self._model.hidden_size * self._model.dtype.size
            self._seam = SeamChooser(
                self._model,
                placement.cycle,
                self.workers,
                placement.fingerprint,
                lambda: next(self._ids),
                placement.split_layer,
                placement.split_tokens_min,
                UBATCH_TOKENS * (row_bytes + residual_bytes),
            )

    # -- the engine's protocol ------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Runs a ubatch and a token, so that compiling and first touches are not the first request's wait."""
        # To measure speeds: one whole ubatch that is cold, one that counts, and the last.
        tokens = WARM_UP_TOKENS if self._seam is None else 3 * UBATCH_TOKENS
        tokens = min(tokens, min(self.ctx_size, self._host_tokens) - 1)  # and one that is decoded
        if tokens < 1:
            return
        request = GenerationRequest("warm-up", (0,) * tokens, 1)
        state = self._new_sequence(request, self._sampler(request), None)
        for start in range(0, tokens, UBATCH_TOKENS):
            self.prefill(state, start, min(start + UBATCH_TOKENS, tokens))
        self.decode(state)
        if self._seam is not None:
            self._seam.prepare()

    @property
    def split_note(self) -> str | None:
        """Why reads are not split, as far as is known, in a sentence for a person."""
        return self._seam.note if self._seam is not None else None

    def start(self, request: GenerationRequest) -> Sequence:
        # Where this raises, no kept conversation is taken yet, that would be lost.
        sampler = self._sampler(request)
        prompt = list(request.prompt)
        # Only what cannot run without the worker waits for it; the others find it when it is there.
        needed = self._spill is None and len(prompt) > self._host_tokens
        back = [worker.await_return(RETRY_GREETING_S if needed else 0.0) for worker in self.workers]
        if needed and not any(back):
            raise self._full()  # before a read that may take minutes
        resumed = None if request.prompt_logprobs else self._resumed(prompt, sampler)
        return resumed or self._new_sequence(request, sampler, self._new_holder())

    def read_from(self, state: Sequence) -> int:
        """How many prompt tokens need no reading."""
        return state.read_from

    def step_tokens(self, state: Sequence) -> int:
        """How many prompt tokens the next step should read: two ubatches where one overlaps the other's questions."""
        return 2 * UBATCH_TOKENS if state.table.held else UBATCH_TOKENS

    def text(self, request: GenerationRequest) -> TextStream:
        return TextStream(self._tokenizer, request.stop)

    def token_bytes(self, token: int) -> bytes:
        return token_bytes(self._tokenizer, token)

    def prefill(self, state: Sequence, start: int, stop: int) -> Chosen | None:
        logits = self.read(state, start, stop)
        return None if logits is None else self._choose(state, logits)

    def prompt_scores(self, state: Sequence) -> list[Score]:
        assert state.scores is not None
        return state.scores.take()

    def decode(self, state: Sequence) -> Chosen:
        return self._choose(state, self.run_token(state))

    def is_end(self, token: int) -> bool:
        return token in self._end

    def finish(self, state: Sequence) -> None:
        """Keeps the conversation for its next request, if it is whole."""
        try:
            if not state.failed and state.tail is not None:
                # Cancelled in the middle of a split read, whose tail stands elsewhere than its head.
                state.tail.abandon()
                state.tail = None
                state.rewind(state.read_from)
            if not state.failed and (read := state.table.tokens) < state.prompt_tokens:
                del state.tokens[read:]
                state.prompt_tokens = read
        except BackburnerError as e:
            log.warning("a cancelled conversation is not kept: %s", e)
            state.failed = True
        if state.failed or not state.checkpoints.positions:
            self._give_up(state)
        else:
            self.sessions.put(state)

    def worker_statuses(self) -> tuple[WorkerStatus, ...]:
        return tuple(worker.status() for worker in self.workers)

    def status(self) -> RunnerStatus:
        seam, spill = self._seam, self._spill
        reads = seam.reads if seam is not None else ReadCounts()
        return RunnerStatus(
            sessions=len(self.sessions),
            spill_bytes=spill.bytes_used if spill is not None else 0,
            spill_pages=spill.pages if spill is not None else 0,
            spill_partials=spill.partials if spill is not None else 0,
            split_reads=reads.split,
            split_tokens=reads.tokens,
            split_worker_s=reads.worker_s,
            whole_reads=reads.whole,
            lost_reads=reads.lost,
            seam=seam.seam if seam is not None else None,
        )

    def close(self) -> None:
        self.sessions.clear()
        for worker in self.workers:
            worker.close()
        if self._spill is not None:
            self._spill.close()

    def leave_thread(self) -> None:
        # MLX's streams belong to this thread; left to its end, their threads abort the process at exit now and then.
        mx.clear_streams()

    # -- sequences ------------------------------------------------------------------------------------------------

    def _new_holder(self) -> HeldPages | None:
        residency = self._placement.residency
        if residency is None or not self.workers:
            return None
        return HeldPages(
            self.workers,
            residency,
            self._spill,
            self._engine,
            self._geometry,
            lambda: next(self._ids),
            self._placement.overdue_pages,
            self._make_room,
        )

    def _make_room(self, table: PageTable, worker: int) -> bool:
        """A worker has no room for pages of the running conversation's table: what it keeps for later goes."""
        return (self._seam is not None and self._seam.give_back(table, worker)) or self.sessions.drop_oldest(
            lambda kept: kept.held is not None and kept.held.occupies(worker)
        )

    def _new_sequence(self, request: GenerationRequest, sampler: Sampler, held: HeldPages | None) -> Sequence:
        model = self._model
        table = PageTable(
            self._engine,
            self._geometry,
            model.attention_layers,
            self._fingerprint,
            held,
            shared_tokens=len(request.prompt) // UBATCH_TOKENS * UBATCH_TOKENS,
        )
        caches = [
            table.layers[i] if i in table.layers else model.new_state() for i in range(len(model.layers))
        ]
        prompt = list(request.prompt)
        sequence = Sequence(len(prompt), prompt, caches, table, held, sampler, self._fingerprint)
        if request.prompt_logprobs:
            sequence.scores = PromptScores(prompt, request.logprobs or 0, model.logits)
        return sequence

    def _sampler(self, request: GenerationRequest) -> Sampler:
        """Raises GrammarError."""
        return Sampler(request, self._model.vocab_size, self._grammars.guide(request.grammar))

    def _resumed(self, prompt: list[int], sampler: Sampler) -> Sequence | None:
        """A kept conversation that this prompt continues, cut back to where both agree."""
        limit = len(prompt) - 1  # the last token has to run, for its logits
        state = self.sessions.take(prompt, lambda kept, common: kept.saves(min(common, limit)))
        if state is None:
            return None
        try:
            self._regain(state)
            common = min(common_prefix(state.tokens, prompt), limit)
            state.read_from = state.rewind(common)
            if state.held is not None:
                state.held.check(state.table.held)
        except WorkerLost as e:
            log.warning("a kept conversation is read anew: %s", e)
            self._give_up(state)
            return None
        state.tokens = prompt
        state.prompt_tokens = len(prompt)
        state.table.shared_tokens = len(prompt) // UBATCH_TOKENS * UBATCH_TOKENS
        state.sample, state.scores = sampler, None
        return state

    def _regain(self, state: Sequence) -> None:
        """Workers that were away since say what they still have of a kept conversation."""
        held = state.held
        if held is None:
            return
        if held.missing(state.table.held) is not None:
            for worker in self.workers:  # a moment, where the alternative is to read all of it again
                worker.await_return(RETRY_GREETING_S)
        held.renew(state.table)
        held.retry(state.table)

    def _give_up(self, state: Sequence) -> None:
        if state.tail is not None:
            state.tail.abandon()
            state.tail = None
        if state.held is not None:
            state.held.release()

    # -- steps ----------------------------------------------------------------------------------------------------

    def read(self, state: Sequence, start: int, stop: int) -> mx.array | None:
        """Reads prompt tokens [start, stop), in whole ubatches but the last. After the prompt's end, logits [vocab].

        Pages move between steps only, so all layers of a step see the same split between host and worker.
        """
        with _Failing(state):
            last_start = (state.prompt_tokens - 1) // UBATCH_TOKENS * UBATCH_TOKENS
            self._settle(state)
            self._check_room(state, stop - start)
            # Behind the last layer, the rows that score a prompt's tokens are needed here.
            splits = self._seam is not None and state.held is not None and state.scores is None
            if splits and start == state.read_from:
                assert self._seam is not None
                state.tail = self._seam.begin(state, start, last_start)
            body = min(stop, last_start)
            if start < body:
                self._read_ubatches(state, start, body)
            if stop <= last_start:
                return None
            return self._read_last(state, max(start, last_start), stop)

    def run_token(self, state: Sequence) -> mx.array:
        """Runs the newest token through all layers: logits [vocab]."""
        with _Failing(state):
            self._settle(state)
            self._check_room(state, 1)
            model = self._model
            residual = model.run_layers(self._embed(state.tokens[-1:]), state.caches, 0, len(model.layers))
            logits = model.logits(residual)[0]
            mx.eval(self._states(state, 0), logits)
            return logits

    def _read_ubatches(self, state: Sequence, start: int, stop: int) -> None:
        """Ubatches before the last. Where old pages are held they go through the layers together, so that one's
        questions are answered while the other computes here."""
        starts = list(range(start, stop, UBATCH_TOKENS))
        groups = [starts] if state.table.held else [[s] for s in starts]
        for group in groups:
            tail = state.tail
            layers = tail.seam if tail is not None else len(self._model.layers)
            if tail is None and group[0] - state.checkpoints.newest >= CHECKPOINT_TOKENS:
                state.keep(group[0])
            begun = time.perf_counter()
            blocks = [state.tokens[s : min(s + UBATCH_TOKENS, stop)] for s in group]
            walks = [self._model.walk(self._embed(b), state.caches, 0, layers) for b in blocks]
            residuals = alternate(walks)
            mx.eval(self._states(state, 0, layers), residuals)
            if self._seam is not None and len(blocks[-1]) == UBATCH_TOKENS:
                self._seam.observe_host(layers, (time.perf_counter() - begun) / len(group))
            for s, residual in zip(group, residuals, strict=True):
                if state.scores is not None:
                    state.scores.add(s, residual)
                if state.tail is not None:
                    self._push(state, s, residual)
                elif tail is not None:  # lost with the half before: this one's tail is run here, after that
                    self._model.run_layers(residual, state.caches, layers, len(self._model.layers))
                    mx.eval(self._states(state, layers))

    def _push(self, state: Sequence, start: int, residual: mx.array) -> None:
        tail: TailRead = state.tail
        try:
            tail.push(start, residual, state.name_ubatches(start + UBATCH_TOKENS)[-1])
        except TailLost as e:
            self._recover(state, e)

    def _recover(self, state: Sequence, error: TailLost) -> None:
        """A worker is gone, or cannot go on: what it has not done is done here, and so is the rest of the read."""
        tail: TailRead = state.tail
        state.tail = None
        assert self._seam is not None
        self._seam.observe_loss(tail)
        log.warning("a split read goes on without its worker: %s", error)
        tail.recover()

    def _read_last(self, state: Sequence, start: int, stop: int) -> mx.array:
        """The last ubatch, on the host: its head while the tail still runs what came before."""
        model, tail = self._model, state.tail
        tokens = state.tokens[start:stop]
        residual = self._embed(tokens)
        if tail is None:
            if start > 0:
                state.keep(start)
            return self._logits(state, residual, 0)
        states = {i: list(state.caches[i].cache) for i in state.recurrent_layers if i < tail.seam}
        residual = model.run_layers(residual, state.caches, 0, tail.seam)
        mx.eval(residual, self._states(state, 0, tail.seam))
        try:
            after, tail_states = tail.finish(residual)
        except TailLost as e:
            self._recover(state, e)
            states |= {i: list(state.caches[i].cache) for i in state.recurrent_layers if i >= tail.seam}
            state.checkpoints.add(Checkpoint(start, states), state.read_from)
            return self._logits(state, residual, tail.seam)
        state.tail = None
        assert self._seam is not None
        self._seam.observe_read(tail)
        state.checkpoints.add(Checkpoint(start, states | tail_states), state.read_from)
        return self._logits(state, after, len(model.layers))

    def _logits(self, state: Sequence, residual: mx.array, first: int) -> mx.array:
        """From a residual that enters layer `first`."""
        model = self._model
        residual = model.run_layers(residual, state.caches, first, len(model.layers))
        logits = model.logits(residual[:, -1:])[0]
        mx.eval(self._states(state, 0), logits)
        if state.scores is not None:
            state.scores.add(state.prompt_tokens - residual.shape[1], residual)
        return logits

    def _embed(self, tokens: list[int]) -> mx.array:
        return self._model.embed(mx.array(np.asarray(tokens, dtype=np.int32)))

    @staticmethod
    def _states(state: Sequence, first: int, stop: int | None = None) -> list[Any]:
        caches = state.caches
        return [caches[i].cache for i in state.recurrent_layers if first <= i < (stop or len(caches))]

    def _choose(self, state: Sequence, logits: mx.array) -> Chosen:
        chosen = state.sample(logits)
        state.tokens.append(chosen.token)
        return chosen

    def _settle(self, state: Sequence) -> None:
        state.table.name_full_pages(state.tokens)
        if state.held is not None:
            state.held.settle(state.table, state.prompt_tokens)
            for i, worker in enumerate(self.workers):
                worker.held_pages = state.held.held_on(i, state.table.held) * len(state.table.layers)

    def _check_room(self, state: Sequence, new_tokens: int) -> None:
        """The context counts on the workers' memory. Without it, an error beats the system killing the process."""
        local = self._local_tokens(state) + new_tokens
        while local + sum(map(self._local_tokens, self.sessions)) > self._host_tokens:
            if not self.sessions.drop_oldest():
                break
        if local <= self._host_tokens:
            return
        if state.held is None or not any(worker.connection for worker in self.workers):
            raise self._full()
        raise self._full(state.held.refused or "the worker has not taken enough of it")

    def _local_tokens(self, state: Sequence) -> int:
        return max(layer.offset for layer in state.table.layers.values()) - (
            state.table.held * self._geometry.page_tokens
        )

    def _full(self, refused: str | None = None) -> HostFull:
        """refused: why a worker that is there does not take the rest; None: there is none."""
        why = "the worker is away" if refused is None else refused.rstrip(".")
        remedy = "Try again when it is back" if refused is None else "Give the worker more memory"
        return HostFull(
            f"This host can hold {self._host_tokens} tokens of this conversation, and {why}. "
            f"{remedy}, or send a shorter prompt."
        )


class _Failing:
    """Marks a sequence whose step has failed: it is in no state to go on from."""

    def __init__(self, state: Sequence) -> None:
        self._state = state

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._state.failed = True


def alternate(walks: Items[Generator[None, None, mx.array]]) -> list[mx.array]:
    """Drives walks in turns, each up to its next question; what they return, in their order.

    The one behind never overtakes: it gets its turn at a layer only when the one before has left its rows there.
    """
    results: list[Any] = [None] * len(walks)
    active = deque(enumerate(walks))
    try:
        while active:
            number, walk = active.popleft()
            try:
                next(walk)
                active.append((number, walk))
            except StopIteration as end:
                results[number] = end.value
    except BaseException:
        for _, walk in active:
            walk.close()
        raise
    return results
