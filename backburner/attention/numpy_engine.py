"""The reference engine: page attention in plain numpy, the twin that the fast engines are checked against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.attention.checks import check_append, check_attend, check_page_over, check_rows, visible_rows
from backburner.attention.engine import F32, Geometry, Partial
from backburner.attention.merge import merge_all

# Rows that are widened to fp32 at a time. 256 rows stay in the L2 cache: on 16,384 bf16 rows 23 ms against
# 69 ms for casting a whole page.
BLOCK_ROWS = 256

_FLOAT_MAX = np.finfo(np.float32).max

STORAGE_DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


def widen(x: npt.NDArray[Any]) -> F32:
    """Stored values as fp32, exactly. uint16 holds the bits of a bfloat16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32, copy=False)


@dataclass(slots=True)
class NumpyPage:
    geometry: Geometry
    k: npt.NDArray[Any]  # [kv_heads, page_tokens, head_dim]
    v: npt.NDArray[Any]  # [kv_heads, page_tokens, head_dim]
    filled: int = 0


class NumpyEngine:
    """Online softmax over blocks of rows, all kv heads at once."""

    name = "numpy"

    def page_bytes(self, geometry: Geometry) -> int:
        return geometry.page_bytes

    def new_page(self, geometry: Geometry) -> NumpyPage:
        shape = (geometry.kv_heads, geometry.page_tokens, geometry.head_dim)
        dtype = STORAGE_DTYPES[geometry.dtype]
        return NumpyPage(geometry, np.zeros(shape, dtype), np.zeros(shape, dtype))

    def append(self, page: NumpyPage, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        check_append(page.geometry, page.filled, k, v, page.k.dtype)
        stop = page.filled + k.shape[1]
        page.k[:, page.filled : stop] = k
        page.v[:, page.filled : stop] = v
        page.filled = stop

    def rows(self, page: NumpyPage, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        check_rows(page.filled, start, stop)
        return page.k[:, start:stop].copy(), page.v[:, start:stop].copy()

    def storage(self, page: NumpyPage) -> tuple[npt.NDArray[Any], ...]:
        return page.k, page.v

    def page_over(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]], filled: int) -> NumpyPage:
        shape = (geometry.kv_heads, geometry.page_tokens, geometry.head_dim)
        check_page_over(geometry, arrays, filled, [shape, shape], np.dtype(STORAGE_DTYPES[geometry.dtype]))
        k, v = arrays
        return NumpyPage(geometry, k, v, filled)

    def attend(
        self,
        geometry: Geometry,
        q: F32,
        pages: Sequence[NumpyPage],
        first_visible: Sequence[int] | None = None,
    ) -> list[Partial]:
        check_attend(geometry, q, pages, first_visible)
        tokens = q.shape[1]
        # The query heads that share a kv head become rows of one matrix: [kv_heads, group * T, head_dim].
        rows_q = q.reshape(geometry.kv_heads, -1, geometry.head_dim) * np.float32(geometry.scale)
        partials = []
        for p, page in enumerate(pages):
            visible = visible_rows(page.filled, tokens, None if first_visible is None else first_visible[p])
            group_visible = np.tile(visible, geometry.q_heads // geometry.kv_heads)  # [group * T]
            partials.append(_attend_page(geometry, rows_q, page, group_visible, tokens))
        return partials

    def fold(self, partials: Sequence[Partial]) -> Partial:
        return merge_all(partials)

    def leave_thread(self) -> None:
        pass


def _attend_page(
    geometry: Geometry, q: F32, page: NumpyPage, visible: npt.NDArray[np.int64], tokens: int
) -> Partial:
    m = np.full(q.shape[:2], -np.inf, np.float32)  # the running maximum, [kv_heads, group * T]
    total = np.zeros(q.shape[:2], np.float32)
    o = np.zeros(q.shape, np.float32)
    for start in range(0, int(visible.max(initial=0)), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, int(visible.max()))
        with np.errstate(over="ignore"):
            s = q @ widen(page.k[:, start:stop]).transpose(0, 2, 1)  # [kv_heads, group * T, rows]
        # A product that overflows counts as the largest float: inf - inf would be NaN.
        np.clip(s, -_FLOAT_MAX, _FLOAT_MAX, out=s)
        if int(visible.min()) < stop:
            s[:, np.arange(start, stop) >= visible[:, None]] = -np.inf
        m_new = np.maximum(m, s.max(axis=-1))
        shift = np.where(m_new == -np.inf, np.float32(0), m_new)  # rows that still see nothing
        with np.errstate(over="ignore"):  # -FLT_MAX - FLT_MAX is -inf, whose exp is the right 0
            weights = np.exp(s - shift[..., None])
            keep = np.exp(m - shift)
        total = total * keep + weights.sum(axis=-1)
        o = o * keep[..., None] + weights @ widen(page.v[:, start:stop])
        m = m_new
    total_or_one = np.where(total == 0, np.float32(1), total)
    o /= total_or_one[..., None]
    lse = np.where(total == 0, np.float32(-np.inf), m + np.log(total_or_one))
    shape = (geometry.q_heads, tokens)
    return Partial(o=o.reshape(*shape, geometry.head_dim), lse=lse.reshape(shape))
