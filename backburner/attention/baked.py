"""Attention over baked pages beside an ordinary engine's: both at once, and the ordinary one where one fails."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.attention.checks import check_attend
from backburner.attention.engine import F32, AttentionEngine, Geometry, Partial
from backburner.coreml.manifest import Manifest
from backburner.coreml.queries import Answer, pack, unpack
from backburner.coreml.selftest import Predict

log = logging.getLogger("backburner.attention")

# Scores are rounded to fp16 after the estimate came off them. A row that matters lies near the largest score, so its
# step is that of the estimate's error: up to 16 it is at most 2^-7, and half of it, 0.4 %, what a weight is off.
# Beyond, the page is asked again with what it just said.
ESTIMATE_ERROR_MAX = 16.0

# How long the baked pages of a request may take: half of what the host waits for the whole reply, so that the rows have
# as long to answer in their place. It waits 10 s at first; later 8 times the slowest reply of late, which fades with
# each reply, and 1 s at least (transport/clock.py).
FIRST_DEADLINE_S = 5.0
FLOOR_S = 0.5
MARGIN = 4.0
FADE = 0.98


@dataclass(eq=False, slots=True)
class BakedPage:
    """One layer's K and V over a run of pages, as a model. One call at a time; `failed` ends its use."""

    geometry: Geometry  # of the pages that it stands for
    manifest: Manifest
    exponents: npt.NDArray[np.int16]  # of V, [kv_heads, head_dim]
    predict: Predict
    bytes: int  # of memory that it takes
    top: F32 | None = None  # the last call's largest scores, [q_heads]: the next one's estimate
    failed: str | None = None

    @property
    def query_tokens(self) -> int:
        return self.manifest.shape.query_tokens

    def attend(self, q: F32) -> Partial:
        """q: [q_heads, T, head_dim], unscaled, T at most `query_tokens`. Raises what the runtime raises, ValueError."""
        estimate = None if self.top is None else np.repeat(self.top[:, None], q.shape[1], axis=1)
        answer = self._ask(q, estimate)
        off = answer.top if estimate is None else answer.top - estimate
        if self.manifest.shape.estimate and np.abs(off).max() > ESTIMATE_ERROR_MAX:
            answer = self._ask(q, answer.top)  # each token's own
        if not (np.isfinite(answer.o).all() and np.isfinite(answer.lse).all()):
            raise ValueError("the baked page's answer is not finite")
        self.top = answer.top.max(axis=1)
        return Partial(o=np.ascontiguousarray(answer.o), lse=np.ascontiguousarray(answer.lse))

    def _ask(self, q: F32, estimate: F32 | None) -> Answer:
        """estimate: of the largest scores, [q_heads, T]."""
        outputs = self.predict({"q": pack(self.manifest.shape, q, self.geometry.scale, estimate)})
        return unpack(self.manifest, outputs, self.exponents, q.shape[1], estimate)


@dataclass(frozen=True, eq=False, slots=True)
class BakedRun:
    """A baked page in a list of pages, in place of those that it stands for, which answer if it cannot."""

    baked: BakedPage
    raw: tuple[Any, ...]

    @property
    def geometry(self) -> Geometry:
        return self.baked.geometry


class BakedEngine:
    """Stores pages as the ordinary engine does; baked ones are asked on a thread beside it.

    A baked run gives one partial. So the fold differs from the ordinary engine's in its grouping, and in fp16: within
    the self-test's tolerance, not bit for bit.
    """

    def __init__(self, ordinary: AttentionEngine, name: str) -> None:
        self.name = name
        self.ordinary = ordinary
        self._beside = _Beside()

    def page_bytes(self, geometry: Geometry) -> int:
        return self.ordinary.page_bytes(geometry)

    def new_page(self, geometry: Geometry) -> Any:
        return self.ordinary.new_page(geometry)

    def append(self, page: Any, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        self.ordinary.append(page, k, v)

    def rows(self, page: Any, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.ordinary.rows(page, start, stop)

    def storage(self, page: Any) -> tuple[npt.NDArray[Any], ...]:
        return self.ordinary.storage(page)

    def page_over(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]], filled: int) -> Any:
        return self.ordinary.page_over(geometry, arrays, filled)

    def attend(
        self, geometry: Geometry, q: F32, pages: Sequence[Any], first_visible: Sequence[int] | None = None
    ) -> list[Partial]:
        """One partial for each item of `pages`: a page of the ordinary engine, or a BakedRun, which is seen whole."""
        runs = [i for i, page in enumerate(pages) if isinstance(page, BakedRun)]
        if not runs:
            return self.ordinary.attend(geometry, q, pages, first_visible)
        check_attend(geometry, q, pages, first_visible)
        if first_visible is not None:
            raise ValueError("baked pages are seen whole: no causal edge can lie in them")
        deadline = time.monotonic() + self._beside.deadline_s(len(runs))
        answers = [self._beside.ask(pages[i].baked, q) for i in runs]
        others = [i for i, page in enumerate(pages) if not isinstance(page, BakedRun)]
        partials: list[Partial | None] = [None] * len(pages)
        if others:
            found = self.ordinary.attend(geometry, q, [pages[i] for i in others])
            for i, partial in zip(others, found, strict=True):
                partials[i] = partial
        for i, answer in zip(runs, answers, strict=True):
            partials[i] = self._answer(geometry, q, pages[i], answer, deadline)
        return [partial for partial in partials if partial is not None]

    def _answer(
        self, geometry: Geometry, q: F32, run: BakedRun, answer: "Future[Partial]", deadline: float
    ) -> Partial:
        try:
            return self._beside.wait(answer, deadline)
        except CancelledError:  # another call hangs: nothing is known against this page
            pass
        except Exception as e:  # whatever a device may raise: the rows are still here
            run.baked.failed = f"{type(e).__name__}: {e}"
            log.warning("a baked page failed, its rows are used instead: %s", run.baked.failed)
        return self.ordinary.fold(self.ordinary.attend(geometry, q, run.raw))

    def fold(self, partials: Sequence[Partial]) -> Partial:
        return self.ordinary.fold(partials)

    def leave_thread(self) -> None:
        self.ordinary.leave_thread()


class _Beside:
    """The thread that asks baked pages, one call at a time.

    A call that hangs cannot be ended. It holds up neither a session, since waiting has a deadline and nothing is asked
    behind it, nor the process's end, since the thread is a daemon.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Partial], BakedPage, F32]] = SimpleQueue()
        self._thread: threading.Thread | None = None  # it starts with the first baked page
        self._lock = threading.Lock()
        self._overdue: Future[Partial] | None = None  # of the call that hangs, if it still does
        self._slowest_s: float | None = None  # of one call, of late

    def deadline_s(self, calls: int) -> float:
        """The longest to wait for so many calls."""
        if self._slowest_s is None:
            return FIRST_DEADLINE_S
        return max(FLOOR_S, min(FIRST_DEADLINE_S, MARGIN * calls * self._slowest_s))

    def ask(self, baked: BakedPage, q: F32) -> "Future[Partial]":
        """To be waited for with `wait`."""
        answer: Future[Partial] = Future()
        with self._lock:
            if self._overdue is not None and not self._overdue.done():
                answer.cancel()
                return answer
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="baked", daemon=True)
                self._thread.start()
        self._asked.put((answer, baked, q))
        return answer

    def wait(self, answer: "Future[Partial]", deadline: float) -> Partial:
        """Raises what the call did; TimeoutError if it hangs, CancelledError if it never began."""
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if answer.done():  # at the last moment, or it is the call's own
                return answer.result()
            if answer.cancel():
                raise CancelledError from None
            self._overdue = answer
            raise TimeoutError("the runtime does not answer") from None

    def _main(self) -> None:
        while True:
            self._call(*self._asked.get())

    def _call(self, answer: "Future[Partial]", baked: BakedPage, q: F32) -> None:
        """Of its own, so that the thread keeps no page while it waits."""
        if not answer.set_running_or_notify_cancel():
            return
        begun = time.monotonic()
        try:
            answer.set_result(baked.attend(q))
        except BaseException as e:
            answer.set_exception(e)
        if answer is not self._overdue:  # the next one that hangs is to be noticed as soon
            self._slowest_s = max((self._slowest_s or 0.0) * FADE, time.monotonic() - begun)
