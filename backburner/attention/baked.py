"""Attention over baked pages beside an ordinary engine's: both at once, and the ordinary one where one fails."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
        # Its thread starts with the first baked page.
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baked")

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
        asked = [(i, self._beside.submit(_ask, pages[i].baked, q)) for i in runs]
        others = [i for i, page in enumerate(pages) if not isinstance(page, BakedRun)]
        partials: list[Partial | None] = [None] * len(pages)
        if others:
            found = self.ordinary.attend(geometry, q, [pages[i] for i in others])
            for i, partial in zip(others, found, strict=True):
                partials[i] = partial
        for i, answer in asked:
            partials[i] = self._answer(geometry, q, pages[i], answer)
        return [partial for partial in partials if partial is not None]

    def _answer(self, geometry: Geometry, q: F32, run: BakedRun, answer: "Future[Partial]") -> Partial:
        try:
            return answer.result()
        except Exception as e:  # whatever a device may raise: the rows are still here
            run.baked.failed = f"{type(e).__name__}: {e}"
            log.warning("a baked page failed, its rows are used instead: %s", run.baked.failed)
            return self.ordinary.fold(self.ordinary.attend(geometry, q, run.raw))

    def fold(self, partials: Sequence[Partial]) -> Partial:
        return self.ordinary.fold(partials)

    def leave_thread(self) -> None:
        self.ordinary.leave_thread()


def _ask(baked: BakedPage, q: F32) -> Partial:
    return baked.attend(q)
