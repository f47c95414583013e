"""The fault matrix: one thing happens to a worker at one moment of a request, and the reply has to be the same."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from backburner.engine.runner import ModelRunner
from backburner.engine.sequence import Sequence as SequenceState
from backburner.errors import BackburnerError
from backburner.model.load import TINY
from backburner.transport.link import Link
from backburner.transport.messages import Kind
from backburner.transport.tcp import connect
from backburner.worker.server import WorkerServer
from tests.cable import Cable, Direction, Fault
from tests.host import generate, generate_with_state, host, long_prompt, port_of, serving
from tests.processes import Process, worker

MODEL = ("tiny", TINY)
PROMPT = (long_prompt() * 4)[:1400]
TOKENS = 12
# At 4 both sides have attention layers, the worker the model's last two. At 2 the worker has all three, so that what
# the first of them sees decides all that follows, but then all pages are born held and none crosses.
SEAMS = (4, 2)
WINDOW = 128

# A healthy worker is back within this, however busy the machine is.
RETURN_S = 20.0


@dataclass(frozen=True)
class Moment:
    """In a frame: its kind, how many of the kind come before, and how far into it."""

    direction: Direction
    kind: Kind
    number: int
    at: int = 0
    after_tokens: int = 0  # the frame is looked for once so much of the answer is there


INSIDE = 4096  # bytes: in the middle of a body

MOMENTS = {
    "first ubatch": Moment("up", Kind.TAIL_CHUNK, 0),
    "middle": Moment("up", Kind.TAIL_CHUNK, 2),
    "rows streaming": Moment("down", Kind.TAIL_ACK, 1, INSIDE),
    "state return": Moment("down", Kind.STATE_REPLY, 1, INSIDE),
    "page move": Moment("up", Kind.PUT_PAGE, 4, INSIDE),
    "decode": Moment("up", Kind.ATTEND, 0, after_tokens=3),
}

# How the host can tell: by the end of the stream, by a deadline, or by an answer.
FAULTS = {
    "SIGKILL": "eof",
    "SIGSTOP": "deadline",
    "half-open link": "deadline",
    "corrupt frame": "eof",
    "out of memory": "refusal",
    "restart, memory empty": "eof",
    "restart, memory kept": "eof",
}

# What carries a check is damaged in its numbers, everything else in its magic.
CHECKED = {Kind.PUT_PAGE, Kind.STATE_REPLY}


@dataclass
class Cell:
    """What came of one fault at one moment."""

    fault: str
    moment: str
    seam: int
    happened: bool = False
    same_tokens: bool = False
    identical: bool = False  # the logits, too, bit for bit
    error: str | None = None
    notice_s: float | None = None  # from the fault until the host knew
    seconds: float = 0.0
    serves_again: bool | None = None  # None: it is not there any more

    @property
    def passed(self) -> bool:
        return self.happened and self.same_tokens and self.error is None and self.serves_again is not False

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


class WorkerThread:
    """A worker in this process. It dies by closing; freezing is the cable's business."""

    def __init__(self, server: WorkerServer) -> None:
        self.server = server
        self.port = port_of(server)

    def kill(self) -> None:
        self.server.close()

    def refuse(self) -> None:
        """Takes no more than it has."""
        store = self.server.store
        store.memory_bytes = store.used_bytes


class WorkerProcess:
    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self.port = port

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)

    def stop(self) -> None:
        self._process.signal(signal.SIGSTOP)


@contextmanager
def thread() -> Iterator[WorkerThread]:
    with serving(model=MODEL) as server:
        yield WorkerThread(server)


@contextmanager
def process() -> Iterator[WorkerProcess]:
    with worker(0, "--model", "tiny", "--memory", "1GB") as (started, port):
        yield WorkerProcess(started, port)


@lru_cache
def answer() -> tuple[list[int], list[np.ndarray]]:
    """What a host alone writes, and the logits that each token was chosen from."""
    with host(window_tokens=WINDOW) as runner:
        return generate(runner, PROMPT, TOKENS)


def cells() -> list[tuple[str, str, int]]:
    """Faults, moments and seams of the whole matrix."""
    return [
        (fault, moment, seam)
        for seam in SEAMS
        for fault in FAULTS
        for moment in MOMENTS
        if not (seam == 2 and moment == "page move")
    ]


def run_cell(fault: str, moment: str, seam: int, folder: Path, timeout_s: float, processes: bool) -> Cell:
    """`processes`: where a signal is part of the fault, its worker is a process of its own."""
    cell, at = Cell(fault, moment, seam), MOMENTS[moment]
    with ExitStack() as stack:
        real = processes and fault in ("SIGKILL", "SIGSTOP", "restart, memory empty")
        start: Callable[[], Any] = process if real else thread
        first: Any = stack.enter_context(start())
        second: Any = stack.enter_context(start()) if fault == "restart, memory empty" else None
        cable = Cable(first.port)
        stack.callback(cable.close)
        kind, action = _what(fault, first, second, cable)
        flipped_at = at.at if at.kind in CHECKED else 0
        cable._fault = Fault(
            kind,
            at.direction,
            flipped_at if kind == "flip" else at.at,
            3,
            (at.kind, at.number),
        )
        cable._action = action
        if at.after_tokens:
            cable.armed.clear()
        runner = stack.enter_context(
            host(
                lambda: Link(connect("127.0.0.1", cable.port), timeout_s),
                split_layer=seam,
                window_tokens=WINDOW,
                spill_folder=folder,
            )
        )
        cable.heal()  # connections to come
        watch = _Watch(runner)
        begun = time.monotonic()

        def before_step(state: SequenceState) -> None:
            if len(state.tokens) - len(PROMPT) >= at.after_tokens:
                cable.armed.set()

        try:
            tokens, logits, _ = generate_with_state(runner, PROMPT, TOKENS, before_step=before_step)
            cell.same_tokens = tokens == answer()[0]
            cell.identical = cell.same_tokens and all(map(np.array_equal, logits, answer()[1]))
        except Exception as e:
            cell.error = f"{type(e).__name__}: {e}"
        cell.seconds = time.monotonic() - begun
        cell.happened = cable.hit_s is not None
        if FAULTS[fault] != "refusal" and cable.hit_s is not None and cell.happened:
            noticed = watch.ended(timeout_s + 5)
            if noticed is None:
                cell.error = cell.error or "the host has not noticed"
            else:
                cell.notice_s = max(0.0, noticed - cable.hit_s)
        if fault not in ("SIGKILL", "SIGSTOP"):
            cell.serves_again = _serves_again(runner, seam, FAULTS[fault] == "refusal")
        watch.stop()
    return cell


def _what(fault: str, first: Any, second: Any, cable: Cable) -> tuple[Any, Callable[[], None]]:
    """What the cable does, and what happens beside it."""

    def nothing() -> None: ...

    def exchange() -> None:
        cable.target = second.port
        first.kill()

    if fault == "SIGKILL":
        return "act", first.kill
    if fault == "SIGSTOP":
        return "act", first.stop if hasattr(first, "stop") else cable.freeze
    if fault == "half-open link":
        return "stall", nothing
    if fault == "corrupt frame":
        return "flip", nothing
    if fault == "out of memory":
        return "act", first.refuse
    if fault == "restart, memory empty":
        return "act", exchange
    assert fault == "restart, memory kept"
    return "cut", nothing


def _serves_again(runner: ModelRunner, seam: int, refuses: bool) -> bool:
    """The worker is back without anybody's help, and the next request is answered as well, with it."""
    (link,) = runner.workers
    end = time.monotonic() + RETURN_S
    while link.connection is None:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    try:
        same = generate(runner, PROMPT, TOKENS)[0] == answer()[0]
    except BackburnerError:
        return False
    assert runner._seam is not None
    return same and (refuses or runner._seam.seam == seam)


class _Watch:
    """When the first connection ended, to the millisecond."""

    def __init__(self, runner: ModelRunner) -> None:
        self._connection = runner.workers[0].connection
        self._ended_s: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        assert self._connection is not None
        while not self._stopping.is_set():
            if not self._connection.alive:
                self._ended_s = time.monotonic()
                return
            time.sleep(0.001)

    def ended(self, timeout_s: float) -> float | None:
        self._thread.join(timeout_s)
        return self._ended_s

    def stop(self) -> None:
        self._stopping.set()


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    def worst(by: str) -> float:
        times = [c.notice_s for c in cells if FAULTS[c.fault] == by and c.notice_s is not None]
        return round(max(times, default=0.0), 3)

    return {
        "cells": len(cells),
        "passed": sum(c.passed for c in cells),
        "lost": sum(not c.same_tokens for c in cells),
        "identical": sum(c.identical for c in cells),
        "worst_notice_eof_s": worst("eof"),
        "worst_notice_deadline_s": worst("deadline"),
        "rows": [c.row() for c in cells],
    }
