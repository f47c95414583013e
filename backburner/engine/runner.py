"""Runs one step of one sequence: a ubatch of a read, or one token. Everything here is on the engine thread."""

import logging
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.engine.request import GenerationRequest, WorkerStatus
from backburner.engine.sampling import Sampler, sampler_for
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.text import TextStream
from backburner.engine.worker_link import WorkerLink
from backburner.errors import HostFull
from backburner.kv.held import HeldPages
from backburner.kv.pages import PageTable
from backburner.model.fingerprint import rows_fingerprint
from backburner.model.load import LoadedModel

log = logging.getLogger("backburner.engine")

# More than one chunk of the delta rule; enough to compile what a read and a decode use.
WARM_UP_TOKENS = 32


@dataclass(eq=False, slots=True)
class Sequence:
    """One conversation's state: tokens, recurrent states and page table, and who holds its old pages."""

    prompt_tokens: int
    tokens: list[int]  # the prompt, then the answer; the newest may not have run yet
    caches: list[Any]  # by layer: mlx-lm's ArraysCache, or kv.LayerPages
    table: PageTable
    held: HeldPages | None
    sample: Sampler


class ModelRunner:
    """Implements `engine.Runner` with a model, an attention engine and, it may be, a worker."""

    def __init__(
        self,
        loaded: LoadedModel,
        tokenizer: Any,
        engine: AttentionEngine,
        geometry: Geometry,
        ctx_size: int,
        worker: WorkerLink | None,
        host_tokens: int | None = None,
    ) -> None:
        """host_tokens: positions whose K and V fit on this host; None: as many as the context has."""
        self.ctx_size = ctx_size
        self._model = loaded.model
        self._tokenizer = tokenizer
        self._end = frozenset(tokenizer.eos_token_ids)
        self._engine = engine
        self._geometry = geometry
        self._fingerprint = rows_fingerprint(loaded.model.fingerprint, geometry, engine.name, UBATCH_TOKENS)
        self._worker = worker
        self._host_tokens = host_tokens if host_tokens is not None else ctx_size

    def warm_up(self) -> None:
        """Runs a ubatch and a token, so that compiling and first touches are not the first request's wait."""
        state = self._new_sequence(GenerationRequest("warm-up", (0,) * WARM_UP_TOKENS, 1), None)
        self.prefill(state, 0, WARM_UP_TOKENS)
        self.decode(state)

    def start(self, request: GenerationRequest) -> Sequence:
        held = self._worker.new_sequence() if self._worker else None
        if held is None and len(request.prompt) > self._host_tokens:
            raise self._full("the worker is away")  # before a read that may take minutes
        return self._new_sequence(request, held)

    def _new_sequence(self, request: GenerationRequest, held: HeldPages | None) -> Sequence:
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
        sample = sampler_for(request.sampling, model.vocab_size)
        return Sequence(len(request.prompt), list(request.prompt), caches, table, held, sample)

    def text(self, request: GenerationRequest) -> TextStream:
        return TextStream(self._tokenizer, request.stop)

    def prefill(self, state: Sequence, start: int, stop: int) -> int | None:
        logits = self.run(state, state.tokens[start:stop], last=stop == state.prompt_tokens)
        return None if logits is None else self._choose(state, logits)

    def decode(self, state: Sequence) -> int:
        logits = self.run(state, state.tokens[-1:], last=True)
        assert logits is not None
        return self._choose(state, logits)

    def run(self, state: Sequence, tokens: list[int], *, last: bool) -> mx.array | None:
        """Runs tokens through all layers. With `last`, the logits [vocab] after the final one.

        Pages move between steps only, so all layers of a step see the same split between host and worker.
        """
        model = self._model
        self._settle(state)
        self._check_room(state, len(tokens))
        residual = model.embed(mx.array(np.asarray(tokens, dtype=np.int32)))
        residual = model.run_layers(residual, state.caches, 0, len(model.layers))
        states = [c.cache for c in state.caches if isinstance(c, ArraysCache)]
        logits = model.logits(residual[:, -1:])[0] if last else None
        mx.eval(states, logits if last else residual)
        return logits

    def _choose(self, state: Sequence, logits: mx.array) -> int:
        token = state.sample(logits)
        state.tokens.append(token)
        return token

    def _settle(self, state: Sequence) -> None:
        state.table.name_full_pages(state.tokens)
        if state.held is not None:
            state.held.settle(state.table, state.prompt_tokens)
            if self._worker is not None:
                self._worker.held_pages = state.table.held * len(state.table.layers)

    def _check_room(self, state: Sequence, new_tokens: int) -> None:
        """The context counts on the worker's memory. Without it, an error beats the system killing the process."""
        local = state.table.tokens - state.table.held * self._geometry.page_tokens + new_tokens
        if local <= self._host_tokens:
            return
        away = "the worker is away"
        raise self._full(
            away if state.held is None else state.held.refused or "the worker has not taken enough of it"
        )

    def _full(self, why: str) -> HostFull:
        return HostFull(
            f"This host can hold {self._host_tokens} tokens of this conversation, and {why}. "
            "Try again when the worker is back, or send a shorter prompt."
        )

    def is_end(self, token: int) -> bool:
        return token in self._end

    def finish(self, state: Sequence) -> None:
        if state.held is not None:
            state.held.release()

    def worker_status(self) -> WorkerStatus | None:
        return self._worker.status() if self._worker else None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def leave_thread(self) -> None:
        # MLX's streams belong to this thread; left to its end, their threads abort the process at exit now and then.
        mx.clear_streams()
