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
from backburner.engine.request import (
    Delta,
    Emit,
    EngineStatus,
    Failed,
    Finished,
    GenerationRequest,
    Progress,
    WorkerStatus,
)
from backburner.engine.text import TextStream
from backburner.errors import BackburnerError, EngineDead

TINY = Path(backburner.__file__).parent / "model" / "tiny"


@cache
def tiny_tokenizer() -> Any:
    return load(TINY)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(tiny_tokenizer().encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does with one request. Ends with `stop` after the last token."""

    tokens: Sequence[int] = ()
    pieces: Sequence[str] = ()  # sent as they are, instead of tokens: for large texts
    token_delay_s: float = 0.0
    prefill: Sequence[tuple[int, int]] = ()  # (done, total) of each Progress
    prefill_delay_s: float = 0.0  # before each Progress
    fault_at: int | None = None  # fails instead of this token
    fault: BackburnerError = field(default_factory=lambda: BackburnerError("scripted fault"))
    hang_at: int | None = None  # waits instead of this token, until cancelled
    cached_tokens: int = 0


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
        self._script = script if callable(script) else lambda _: script
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self.ctx_size = ctx_size
        self.alive = True
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
        handle = ScriptedHandle()
        self.requests.append(request)
        self.handles.append(handle)
        self._jobs.put(Job(request, emit, handle))
        return handle

    def status(self) -> EngineStatus:
        error = None if self.alive else "scripted: the engine is dead"
        running = int(self.running is not None)
        return EngineStatus(
            self.alive, "tiny", self.ctx_size, running, self._jobs.qsize(), self.worker, error
        )

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
        stream = TextStream(tiny_tokenizer(), request.stop)
        sent = 0
        reason = "stop"
        for i in range(max(len(script.tokens), len(script.pieces)) + 1):
            if i == script.hang_at:
                pause(None)
            if i == script.fault_at:
                raise script.fault
            if i == max(len(script.tokens), len(script.pieces)):
                break
            if i == request.max_tokens:
                reason = "length"
                break
            pause(script.token_delay_s)
            token = script.tokens[i] if script.tokens else 0
            text = stream.push(token) if script.tokens else script.pieces[i]
            sent += 1
            self.emitted_tokens += 1
            job.emit(Delta(text, (token,)))
            if stream.stopped:
                break
        rest = stream.finish()
        if stream.stopped:
            reason = "stop"
        if rest:
            job.emit(Delta(rest, ()))
        job.emit(Finished(reason, len(request.prompt), sent, script.cached_tokens))
