"""An engine for tests: plays a script on its own thread, with delays and faults."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import load

import backburner
from backburner.engine.logprobs import TokenReport, labelled
from backburner.engine.request import (
    Delta,
    Emit,
    EngineStatus,
    EngineTotals,
    Failed,
    Finished,
    GenerationRequest,
    Progress,
    PromptLogprobs,
    RunnerStatus,
    TokenLogprob,
    WorkerStatus,
)
from backburner.engine.sampling import Score
from backburner.engine.text import TextStream, token_bytes
from backburner.errors import BackburnerError, EngineDead, QueueFull

TINY = Path(backburner.__file__).parent / "model" / "tiny"


@cache
def tiny_tokenizer() -> Any:
    return load(TINY)


END = min(tiny_tokenizer().eos_token_ids)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(tiny_tokenizer().encode(text, add_special_tokens=False))


def bytes_of(token: int) -> bytes:
    return token_bytes(tiny_tokenizer(), token)


def score_of(token: int, count: int) -> Score:
    """A token that was the most probable one, and its neighbours by id behind it."""
    neighbours = (((token + i) % len(tiny_tokenizer()), -0.25 - i) for i in range(count))
    return Score(-0.25, tuple(neighbours))


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does with one request. Ends with `stop` after the last token: the end token is not counted."""

    tokens: Sequence[int] = ()
    pieces: Sequence[str] = ()  # sent as they are, instead of tokens: for large texts
    token_delay_s: float = 0.0
    prefill: Sequence[tuple[int, int]] = ()  # (done, total) of each Progress
    prefill_delay_s: float = 0.0  # before each Progress
    fault_at: int | None = None  # fails instead of this token
    fault: BackburnerError = field(default_factory=lambda: BackburnerError("scripted fault"))
    hang_at: int | None = None  # waits instead of this token, until cancelled
    cached_tokens: int = 0
    score: Callable[[int, int], Score] = score_of  # of a token, with so many alternatives
    prompt_step: int = 256  # prompt tokens whose log probabilities are told at once


def says(text: str, **options: Any) -> Script:
    return Script(tokens_of(text), **options)


@dataclass(slots=True)
class ScriptedHandle:
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass(frozen=True, slots=True)
class Job:
    request: GenerationRequest
    emit: Emit
    handle: ScriptedHandle


class CancelledError(Exception):
    """Unwinds a script whose request was cancelled."""


class ScriptedEngine:
    """Serves one request at a time, like the real one. `script` chooses what happens for each request."""

    def __init__(self, script: Script | Callable[[GenerationRequest], Script], ctx_size: int = 4096) -> None:
        """`max_queue` may be set at any time; `totals` and `runner` are what `status` tells of them."""
        self._script = script if callable(script) else lambda _: script
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self.ctx_size = ctx_size
        self.alive = True
        self.max_queue: int | None = None
        self.totals = EngineTotals()
        self.runner = RunnerStatus()
        self.worker: WorkerStatus | None = None
        self.requests: list[GenerationRequest] = []
        self.handles: list[ScriptedHandle] = []
        self.completed: list[str] = []  # request ids that ran to their end
        self.emitted_tokens = 0
        self.running: str | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, emit: Emit) -> ScriptedHandle:
        if not self.alive:
            raise EngineDead("scripted: the engine is dead")
        if not request.admitted and self.status().full:
            raise QueueFull("scripted: too many requests wait")
        handle = ScriptedHandle()
        self.requests.append(request)
        self.handles.append(handle)
        self._jobs.put(Job(request, emit, handle))
        return handle

    def status(self) -> EngineStatus:
        error = None if self.alive else "scripted: the engine is dead"
        running = int(self.running is not None)
        return EngineStatus(
            self.alive,
            "tiny",
            self.ctx_size,
            running,
            self.waiting,
            self.worker,
            error,
            () if self.worker is None else (self.worker,),
            self.max_queue,
            self.totals,
            self.runner,
        )

    @property
    def waiting(self) -> int:
        """Requests behind the running one that still want an answer."""
        jobs = list(self._jobs.queue)
        return sum(job is not None and not job.handle.cancelled.is_set() for job in jobs)

    def close(self) -> None:
        self.alive = False
        for handle in self.handles:
            handle.cancel()
        self._jobs.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.handle.cancelled.is_set():
                continue
            self.running = job.request.request_id
            try:
                self._play(job, self._script(job.request))
                self.completed.append(job.request.request_id)
            except CancelledError:
                pass
            except BackburnerError as e:
                job.emit(Failed(e))
            except Exception as e:  # of the script: a test is to fail and not to wait
                job.emit(Failed(BackburnerError(f"the script is wrong: {e!r}")))
            finally:
                self.running = None

    def _play(self, job: Job, script: Script) -> None:
        def pause(seconds: float | None) -> None:
            # Waits even for 0 s: a cancel is seen between any two steps.
            if job.handle.cancelled.wait(seconds):
                raise CancelledError

        for done, total in script.prefill:
            pause(script.prefill_delay_s)
            job.emit(Progress(done, total))
        request = job.request
        for start in range(0, len(request.prompt) if request.prompt_logprobs else 0, script.prompt_step):
            job.emit(PromptLogprobs(_prompt_logprobs(request, script, start)))
        text = TextStream(tiny_tokenizer(), request.stop)
        report = None if request.logprobs is None or script.pieces else TokenReport(bytes_of)
        end = max(len(script.tokens), len(script.pieces))
        sent = 0
        while True:
            if sent == script.hang_at:
                pause(None)
            if sent == script.fault_at:
                raise script.fault
            if sent == end:
                tokens, piece, ended = (), text.finish(), True
                if report is not None:
                    report.add(END, script.score(END, request.logprobs or 0), end=True)
            else:
                pause(script.token_delay_s)
                tokens = (script.tokens[sent] if script.tokens else 0,)
                piece = text.push(tokens[0]) if script.tokens else script.pieces[sent]
                if report is not None:
                    report.add(tokens[0], script.score(tokens[0], request.logprobs or 0))
                sent += 1
                self.emitted_tokens += 1
                ended = text.stopped or sent == request.max_tokens
                if ended:
                    piece += text.finish()
            scores: tuple[TokenLogprob, ...] = ()
            if report is not None:
                scores = report.sent(piece) + (report.finish(text.stopped) if ended else ())
            job.emit(Delta(piece, tokens, scores))
            if ended:
                break
        reason = "stop" if text.stopped or not tokens else "length"
        job.emit(Finished(reason, len(request.prompt), sent, script.cached_tokens, text.stopped_by))


def _prompt_logprobs(request: GenerationRequest, script: Script, start: int) -> tuple[TokenLogprob, ...]:
    """Like the engine: a step tells of the tokens that its own predict, and nothing precedes the first."""
    first = start + 1 if start else 0
    return tuple(
        labelled(
            token,
            bytes_of(token),
            script.score(token, request.logprobs or 0) if first + i else None,
            bytes_of,
        )
        for i, token in enumerate(request.prompt[first : start + script.prompt_step + 1])
    )
