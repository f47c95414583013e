"""The engine thread: it owns the model and the link, takes requests in turn and reports events."""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar

from backburner.config import MAX_QUEUE
from backburner.engine.logprobs import TokenReport, labelled
from backburner.engine.request import (
    Delta,
    Emit,
    EngineStatus,
    EngineTotals,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    Progress,
    PromptLogprobs,
    RunnerStatus,
    TokenLogprob,
    WorkerStatus,
)
from backburner.engine.restarts import Restarts
from backburner.engine.sampling import Chosen, Score
from backburner.engine.scheduler import Prefill, RequestQueue, next_step
from backburner.errors import BackburnerError, ContextExceeded, EngineDead, QueueFull

log = logging.getLogger("backburner.engine")

# A long read logs its progress no more often than this.
PROGRESS_LOG_INTERVAL_S = 2.0


class TextSink(Protocol):
    """Turns tokens into text that may be sent (`engine.text.TextStream`)."""

    @property
    def stopped(self) -> bool: ...

    @property
    def stopped_by(self) -> str | None: ...

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


S = TypeVar("S")


class Runner(Protocol[S]):
    """One step at a time, on the engine thread. `S` is the runner's own state of a request."""

    ctx_size: int

    def start(self, request: GenerationRequest) -> S: ...

    def text(self, request: GenerationRequest) -> TextSink: ...

    def read_from(self, state: S) -> int:
        """How many leading prompt tokens need no reading, because they were there already."""
        ...

    def step_tokens(self, state: S) -> int:
        """How many prompt tokens the next step should read, in whole ubatches."""
        ...

    def prefill(self, state: S, start: int, stop: int) -> Chosen | None:
        """Reads prompt tokens [start, stop). After the last of them: the first token of the answer."""
        ...

    def prompt_scores(self, state: S) -> list[Score]:
        """Of the prompt tokens that follow those of the last `prefill`, each. Only with `prompt_logprobs`."""
        ...

    def decode(self, state: S) -> Chosen:
        """Runs the newest token and chooses the next."""
        ...

    def token_bytes(self, token: int) -> bytes: ...

    def is_end(self, token: int) -> bool: ...

    def finish(self, state: S) -> None:
        """Gives up what the request held. Never raises."""
        ...

    def worker_statuses(self) -> tuple[WorkerStatus, ...]:
        """Safe from any thread."""
        ...

    def status(self) -> RunnerStatus:
        """Safe from any thread."""
        ...

    def close(self) -> None: ...

    def leave_thread(self) -> None:
        """The engine thread's last call: nothing runs on it any more."""
        ...


@dataclass(eq=False, slots=True)
class _Job:
    """A submitted request: the handle that the API holds and the engine's bookkeeping."""

    request: GenerationRequest
    emit: Emit
    wake: Callable[["_Job"], None]
    submitted_s: float
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        self.wake(self)

    def tell(self, event: Event) -> None:
        if not self.cancelled:
            self.emit(event)


class Engine(Generic[S]):
    """Implements `EngineClient`. `make_runner` is called on the engine thread, because MLX work stays on one thread.

    A fault that is more than one request's ends the thread. The request that ran fails, and is not run again: it may be
    what did it. A new thread makes a new runner and goes on with what waits, a limited number of times.
    """

    def __init__(
        self,
        make_runner: Callable[[], Runner[S]],
        model_name: str,
        max_queue: int = MAX_QUEUE,
        restarts: Restarts | None = None,
    ) -> None:
        """max_queue: requests that may wait; 0: none, only one that can run at once is taken."""
        self._make_runner = make_runner
        self._model_name = model_name
        self._max_queue = max_queue
        self._totals = _Totals()
        self._queue: RequestQueue[_Job] = RequestQueue()
        self._changed = threading.Condition()
        self._running: _Job | None = None
        self._runner: Runner[S] | None = None
        self._ctx_size = 0
        self._closing = False
        self._restarts = restarts or Restarts()
        self._restarting: str | None = None  # why
        self._error: BaseException | None = None  # that ended it for good
        self._started = threading.Event()
        self._thread = self._new_thread(0.0)

    def start(self) -> None:
        """Starts the thread and waits until the runner is ready. Raises what the runner's making raised."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def submit(self, request: GenerationRequest, emit: Emit) -> _Job:
        """Queues a request. Raises EngineDead, ContextExceeded when the prompt cannot fit, or QueueFull."""
        job = _Job(request, emit, self._cancelled, time.monotonic())
        with self._changed:
            if self._error is not None or self._closing or not self._started.is_set():
                raise EngineDead(self._death())
            if len(request.prompt) >= self._ctx_size:
                raise ContextExceeded(
                    f"The prompt has {len(request.prompt)} tokens; the context holds {self._ctx_size}."
                )
            # One that waits while nothing runs is about to run.
            if not request.admitted and len(self._queue) >= self._max_queue + (self._running is None):
                raise QueueFull(f"{len(self._queue)} requests wait already; try again later.")
            self._queue.put(job)
            self._changed.notify()
        return job

    def status(self) -> EngineStatus:
        runner, restarting = self._runner, self._restarting is not None and not self._closing
        statuses = runner.worker_statuses() if runner else ()
        alive = (
            runner is not None
            and self._error is None
            and not (restarting or self._closing)
            and self._thread.is_alive()
        )
        return EngineStatus(
            alive=alive,
            model=self._model_name,
            ctx_size=self._ctx_size,
            running=1 if self._running else 0,
            waiting=len(self._queue),
            worker=statuses[0] if statuses else None,
            workers=statuses,
            error=None if alive else self._death(),
            restarting=restarting,
            restarts=self._restarts.total,
            max_queue=self._max_queue,
            totals=self._totals.snapshot(),
            runner=runner.status() if runner else RunnerStatus(),
        )

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the running request at its next step, fails what waits, and stops the thread. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread  # from here on no other takes its place
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _death(self) -> str:
        if self._error is not None:
            return f"the engine has failed: {_named(self._error)}"
        if self._restarting is not None:
            return f"the engine is being restarted: {self._restarting}"
        return "the engine is not running"

    def _cancelled(self, job: _Job) -> None:
        with self._changed:
            self._queue.forget(job)

    def _new_thread(self, pause_s: float) -> threading.Thread:
        return threading.Thread(target=self._main, args=(pause_s,), name="engine", daemon=True)

    def _main(self, pause_s: float) -> None:
        """One life of the engine."""
        try:
            self._live(pause_s)
        except BaseException as e:
            if not self._restart(e):
                self._end(e)
        else:
            self._end(None)

    def _live(self, pause_s: float) -> None:
        """Serves until the engine is closed. Raises what ended it before."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closing, pause_s):
                return
        runner = self._make_runner()
        try:
            with self._changed:
                self._runner, self._ctx_size, self._restarting = runner, runner.ctx_size, None
            self._started.set()
            while (job := self._next()) is not None:
                self._serve(job)
        except BaseException as e:
            with self._changed:
                # Before the runner is closed, which takes a while: what waits may go on waiting.
                self._restarting = _named(e)
            raise
        finally:
            self._runner = None
            self._leave(runner)

    def _leave(self, runner: Runner[S]) -> None:
        try:
            runner.close()
        except Exception:  # of a runner that has failed anything may fail
            log.exception("the engine has not been closed in order")
        runner.leave_thread()

    def _restart(self, fault: BaseException) -> bool:
        """Whether a new thread has taken over."""
        with self._changed:
            if self._closing or not self._started.is_set():
                return False
            pause_s = self._restarts.next(time.monotonic())
            if pause_s is None:
                log.error("the engine has failed too often: %s", _named(fault), exc_info=fault)
                return False
            log.error("the engine has failed; it starts again in %g s", pause_s, exc_info=fault)
            # They hold the old model, and there may be no room for two.
            traceback.clear_frames(fault.__traceback__)
            self._restarting = _named(fault)
            self._thread = self._new_thread(pause_s)
            self._thread.start()
        return True

    def _end(self, fault: BaseException | None) -> None:
        """Nothing is served any more: says so in /health, and to whoever waits."""
        with self._changed:
            self._error, self._restarting = fault, None
            waiting = self._queue.drain()
        self._started.set()
        for job in waiting:
            job.tell(Failed(EngineDead(self._death())))

    def _next(self) -> _Job | None:
        with self._changed:
            while True:
                if self._closing:
                    return None
                if (job := self._queue.next()) is not None:
                    self._running = job
                    return job
                self._changed.wait()

    def _serve(self, job: _Job) -> None:
        runner = self._runner
        assert runner is not None
        state: S | None = None
        totals = self._totals
        totals.queue_s += time.monotonic() - job.submitted_s
        try:
            state = runner.start(job.request)
            if self._generate(job, state):
                totals.finished += 1
            else:
                totals.cancelled += 1
        except BackburnerError as e:
            totals.failed += 1
            log.warning("request %s failed: %s", job.request.request_id, e)
            job.tell(Failed(e))
        except BaseException as e:  # its text may hold parts of the prompt
            totals.failed += 1
            log.exception("request %s failed", job.request.request_id)
            job.tell(Failed(BackburnerError("internal error; see the server's log")))
            if not isinstance(e, Exception):  # one request's fault must not take the others down
                raise
        finally:
            self._running = None
            if state is not None:
                runner.finish(state)

    def _generate(self, job: _Job, state: S) -> bool:
        """Whether the answer is complete; False when it was cancelled."""
        runner, request, totals = self._runner, job.request, self._totals
        assert runner is not None
        text = runner.text(request)
        report = None if request.logprobs is None else TokenReport(runner.token_bytes)
        room = runner.ctx_size - len(request.prompt)
        if room < 1:  # it was queued before a restart
            raise ContextExceeded(
                f"The context holds {runner.ctx_size} tokens since the engine was restarted."
            )
        limit = min(request.max_tokens, room)
        prompt_tokens, read, produced = len(request.prompt), runner.read_from(state), 0
        cached = read
        totals.cached_tokens += cached
        reason: FinishReason | None = None
        progress = _ProgressLog(request.request_id, prompt_tokens, read)
        while reason is None:
            if job.cancelled:
                log.info("request %s cancelled at %d + %d tokens", request.request_id, read, produced)
                return False
            if self._closing:
                raise EngineDead("the server is shutting down")
            step = next_step(prompt_tokens, read, runner.step_tokens(state))
            begun = time.monotonic()
            if isinstance(step, Prefill):
                chosen = runner.prefill(state, step.start, step.stop)
                read = step.stop
                totals.read_tokens += step.stop - step.start
                totals.prefill_s += time.monotonic() - begun
                progress.reached(read)
                job.tell(Progress(read, prompt_tokens))
                if request.prompt_logprobs:
                    job.tell(PromptLogprobs(self._prompt_logprobs(request, state, step.start)))
            else:
                chosen = runner.decode(state)
                totals.decode_s += time.monotonic() - begun
            if chosen is None:
                continue
            token = chosen.token
            produced += 1
            totals.generated_tokens += 1
            ends = runner.is_end(token) and (not request.ignore_eos or request.grammar is not None)
            if chosen.score is not None and report is not None:
                report.add(token, chosen.score, end=ends)
            if ends:
                reason = "stop"
                piece = text.finish()
            else:
                piece = text.push(token)
                if text.stopped:
                    reason = "stop"
                elif produced >= limit:
                    piece += text.finish()
                    reason = "stop" if text.stopped else "length"
            logprobs: tuple[TokenLogprob, ...] = ()
            if report is not None:
                logprobs = report.sent(piece) + (() if reason is None else report.finish(text.stopped))
            job.tell(Delta(piece, (token,), logprobs))
        progress.finished(produced)
        job.tell(Finished(reason, prompt_tokens, produced, cached, text.stopped_by))
        return True

    def _prompt_logprobs(self, request: GenerationRequest, state: S, start: int) -> tuple[TokenLogprob, ...]:
        runner = self._runner
        assert runner is not None
        scores: list[Score | None] = [*runner.prompt_scores(state)]
        first = start + 1
        if start == 0:
            scores, first = [None, *scores], 0
        tokens = request.prompt[first : first + len(scores)]
        return tuple(
            labelled(token, runner.token_bytes(token), score, runner.token_bytes)
            for token, score in zip(tokens, scores, strict=True)
        )


def _named(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


@dataclass(slots=True)
class _Totals:
    """Counted by the engine thread alone; a snapshot may be a step behind, and needs no lock."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    read_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def snapshot(self) -> EngineTotals:
        return EngineTotals(*(getattr(self, field.name) for field in fields(self)))


class _ProgressLog:
    """Lines about one request: a long read's progress, then how fast it went."""

    def __init__(self, request_id: str, prompt_tokens: int, cached: int) -> None:
        self._id, self._total, self._cached = request_id, prompt_tokens, cached
        self._start = self._last = time.monotonic()
        self._read_s = 0.0

    def reached(self, read: int) -> None:
        now = time.monotonic()
        rate = (read - self._cached) / max(now - self._start, 1e-9)
        if read == self._total:
            self._read_s = now - self._start
            log.info(
                "request %s: read %d tokens after %d cached, %.0f tok/s",
                self._id,
                read - self._cached,
                self._cached,
                rate,
            )
        elif now - self._last >= PROGRESS_LOG_INTERVAL_S:
            self._last = now
            log.info("request %s: reading %d / %d tokens, %.0f tok/s", self._id, read, self._total, rate)

    def finished(self, produced: int) -> None:
        seconds = time.monotonic() - self._start - self._read_s
        if produced > 1:
            log.info("request %s: wrote %d tokens, %.1f tok/s", self._id, produced, (produced - 1) / seconds)
        else:
            log.info("request %s: wrote %d token", self._id, produced)
