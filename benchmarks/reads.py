"""Timed reads of the benchmarks: hosts with and without a worker process, and what a read allows at best."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import pin_process, usable_cores

from backburner.attention.engine import AttentionEngine
from backburner.attention.numpy_engine import widen
from backburner.config import SPLIT_MIN_TOKENS
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Placement
from backburner.engine.scheduler import UBATCH_TOKENS, Prefill, next_step
from backburner.engine.worker_link import WorkerLink
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.model.arrays import to_numpy
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.load import LoadedModel, read_config
from backburner.worker.loopback import LoopbackWorker

WORKER_BYTES = 4 * 2**30
SPILL_BYTES = 8 * 2**30


def prompt(count: int, number: int = 0) -> list[int]:
    """Each number is a conversation of its own from the first token on: nothing kept of one helps with another."""
    return [(i * 7919 + 13 + 101 * number) % 3072 for i in range(count)]


@dataclass
class Reading:
    """One read of a prompt, and what came of it."""

    first: int  # tokens before it needed no reading
    stops: list[int] = field(default_factory=list)  # of each step
    ends_s: list[float] = field(default_factory=list)  # when it was done, since the read began
    logits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    seam: int | None = None
    held_tokens: int = 0  # at its end
    decode_s: list[float] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.stops[-1] - self.first

    @property
    def seconds(self) -> float:
        return self.ends_s[-1]

    def steps_s(self) -> list[float]:
        return list(np.diff([0.0, *self.ends_s]))

    def tok_s(self, start: int, stop: int) -> float:
        """Between two positions; steps that reach over an edge count in part."""
        at = np.interp([start, stop], [self.first, *self.stops], [0.0, *self.ends_s])
        return float((stop - start) / (at[1] - at[0]))

    def same_as(self, other: "Reading") -> bool:
        return bool(np.array_equal(self.logits, other.logits)) and self.answer == other.answer


def read(
    runner: ModelRunner,
    tokens: Sequence[int],
    new_tokens: int = 1,
    after_step: Callable[[], object] = lambda: None,
) -> Reading:
    """Reads a prompt as the server would and decodes greedily up to `new_tokens`. `after_step` is not timed."""
    state = runner.start(GenerationRequest("bench", tuple(tokens), new_tokens))
    try:
        done = runner.read_from(state)
        reading = Reading(done)
        row: Any = None
        elapsed = 0.0
        while isinstance(step := next_step(len(tokens), done, runner.step_tokens(state)), Prefill):
            begun = time.perf_counter()
            row = runner.read(state, step.start, step.stop)
            elapsed += time.perf_counter() - begun
            done = step.stop
            reading.stops.append(done)
            reading.ends_s.append(elapsed)
            after_step()
        reading.logits = np.array(widen(to_numpy(row)))
        state.tokens.append(int(reading.logits.argmax()))
        for _ in range(new_tokens - 1):
            begun = time.perf_counter()
            row = runner.run_token(state)
            state.tokens.append(int(row.argmax().item()))
            reading.decode_s.append(time.perf_counter() - begun)
            after_step()
        reading.answer = state.tokens[len(tokens) :]
        reading.seam = runner._seam.seam if runner._seam is not None else None
        reading.held_tokens = state.table.held * state.table.geometry.page_tokens
        return reading
    finally:
        runner.finish(state)


@dataclass(frozen=True)
class Model:
    """What all hosts of one benchmark share."""

    loaded: LoadedModel
    tokenizer: Any
    engine: AttentionEngine
    folder: Path

    @property
    def layers(self) -> int:
        return len(self.loaded.model.layers)

    @property
    def cycle(self) -> int:
        return int(self.loaded.model.config.get("full_attention_interval", 4))


class Host:
    """A runner, alone or with a worker process. Use as a context."""

    def __init__(self, model: Model, page_tokens: int, ctx_size: int, sessions: int = 0) -> None:
        self._model = model
        self._geometry = model.loaded.model.geometry(page_tokens)
        self._ctx_size = ctx_size
        self._sessions = sessions
        self._process: LoopbackWorker | None = None
        self.worker_pid: int | None = None
        self.runner = self._runner(Placement(sessions=sessions))

    def _runner(self, placement: Placement) -> ModelRunner:
        model = self._model
        return ModelRunner(
            model.loaded, model.tokenizer, model.engine, self._geometry, self._ctx_size, placement
        )

    def with_worker(
        self,
        window_tokens: int,
        split_layer: int | None,
        slowdown: float = 1.0,
        spill_folder: Path | None = None,
        split_tokens_min: int = SPLIT_MIN_TOKENS,
    ) -> "Host":
        """Starts `backburner worker --model` on the second core, where there is one."""
        model, geometry = self._model, self._geometry
        layers, fingerprint = model.loaded.model.attention_layers, model.loaded.model.fingerprint
        self._process = LoopbackWorker(WORKER_BYTES, slowdown=slowdown, model=str(model.folder))
        connect = self._process.connector(model.engine.name)
        link = WorkerLink(connect, "loopback", model.engine, geometry, layers, fingerprint)
        self.worker_pid = self._process.pid
        cores = usable_cores_at_start()
        if len(cores) > 1 and self.worker_pid is not None:
            pin_process(self.worker_pid, cores[1])
        spill = Spill(spill_folder, SPILL_BYTES, model.engine, geometry, layers) if spill_folder else None
        config = read_config(model.folder)
        placement = Placement(
            workers=[link],
            residency=Residency(geometry.page_tokens, window_tokens),
            spill=spill,
            split_tokens_min=split_tokens_min,
            split_layer=split_layer,
            fingerprint=functools.cache(
                lambda first, stop: layers_fingerprint(model.folder, config, first, stop, False)
            ),
            cycle=model.cycle,
            sessions=self._sessions,
        )
        self.runner = self._runner(placement)
        return self

    def __enter__(self) -> "Host":
        self.runner.warm_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close()
        if self._process is not None:
            self._process.close()


@functools.cache
def usable_cores_at_start() -> tuple[int, ...]:
    """Call it once before this process is pinned: afterwards only its own core is seen."""
    return tuple(usable_cores())


def pipelined_s(
    heads: Sequence[float], tails: Sequence[float], last_tail: float, tail_layers: int, asked: Sequence[float]
) -> float:
    """Seconds of a split read at best: no link, no waiting but for what a step needs.

    `heads[i]` is what the host needs for ubatch i's layers [0, L); `tails[i]` what the worker needs for its layers
    [L, N), of all ubatches but the last, whose tail takes the host `last_tail`; `asked[i]` what the worker needs for
    old keys that ubatch i's head asks about, which comes before its tails and beside the head's own work.

    The worker begins a tail when its head is done and the tail before it is. The host's last tail follows the
    worker's one layer behind: it ends one layer after the worker, or all its layers after the first of them may begin.

    With n equal ubatches, h for a layer and ubatch on both sides, L = N/2 and nothing asked, the worker is never the
    one who is waited for: n L h for the heads and (N - L) h for the last tail, against n N h alone. So the best
    speed-up is n N / (n L + N - L) = (N / L) / (1 + (N - L) / (n L)): 1.88 for 16 ubatches, 2 for endless ones.
    """
    host = worker = last = 0.0
    for i, head in enumerate(heads):
        host += max(head, asked[i])
        worker += asked[i]
        if i < len(tails):
            last = tails[i]
            worker = max(worker, host) + last
    one_here, one_there = last_tail / tail_layers, last / tail_layers
    return max(host + last_tail, worker + one_here, worker - last + one_there + last_tail)


def fit_growth(alone: Reading, steps: Sequence[float]) -> tuple[float, float]:
    """Seconds of one of the host's ubatches: what does not depend on depth, and seconds more for each key before it.

    A least-squares line through the whole ubatches; the last one has the logits too, and may be short.
    """
    stops = np.array(alone.stops[:-1])
    if len(stops) < 2:
        return float(np.mean(steps)), 0.0
    slope, base = np.polyfit(stops - UBATCH_TOKENS / 2, np.array(steps[:-1]), 1)
    return float(base), max(0.0, float(slope))
