"""Page attention in MLX array operations, for Metal, CUDA and CPU alike, on the caller's thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backburner.attention.checks import check_append, check_attend, check_page_over, check_rows, visible_rows
from backburner.attention.engine import F32, Geometry, Partial
from backburner.attention.merge import merge_all
from backburner.attention.numpy_engine import STORAGE_DTYPES

_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_FLOAT_MAX = float(np.finfo(np.float32).max)


@dataclass(slots=True)
class MlxPage:
    geometry: Geometry
    k: mx.array  # [kv_heads, page_tokens, head_dim]
    v: mx.array  # [kv_heads, page_tokens, head_dim]
    filled: int = 0


class MlxEngine:
    """Whole-page softmax in fp32. Arrays are evaluated before they are kept, so a page may change threads."""

    name = "mlx"

    def page_bytes(self, geometry: Geometry) -> int:
        return geometry.page_bytes

    def new_page(self, geometry: Geometry) -> MlxPage:
        shape = (geometry.kv_heads, geometry.page_tokens, geometry.head_dim)
        page = MlxPage(
            geometry, mx.zeros(shape, _DTYPES[geometry.dtype]), mx.zeros(shape, _DTYPES[geometry.dtype])
        )
        mx.eval(page.k, page.v)
        return page

    def append(self, page: MlxPage, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        check_append(page.geometry, page.filled, k, v, np.dtype(STORAGE_DTYPES[page.geometry.dtype]))
        stop = page.filled + k.shape[1]
        # The old array has no other reference, so MLX writes the rows in place.
        page.k[:, page.filled : stop] = _from_numpy(page.geometry, k)
        page.v[:, page.filled : stop] = _from_numpy(page.geometry, v)
        mx.eval(page.k, page.v)
        page.filled = stop

    def rows(self, page: MlxPage, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        check_rows(page.filled, start, stop)
        return _to_numpy(page.k[:, start:stop]), _to_numpy(page.v[:, start:stop])

    def storage(self, page: MlxPage) -> tuple[npt.NDArray[Any], ...]:
        return _shared_with_numpy(page.k), _shared_with_numpy(page.v)

    def page_over(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]], filled: int) -> MlxPage:
        shape = (geometry.kv_heads, geometry.page_tokens, geometry.head_dim)
        check_page_over(geometry, arrays, filled, [shape, shape], np.dtype(STORAGE_DTYPES[geometry.dtype]))
        k, v = (_from_numpy(geometry, a) for a in arrays)
        mx.eval(k, v)
        return MlxPage(geometry, k, v, filled)

    def attend(
        self,
        geometry: Geometry,
        q: F32,
        pages: Sequence[MlxPage],
        first_visible: Sequence[int] | None = None,
    ) -> list[Partial]:
        check_attend(geometry, q, pages, first_visible)
        tokens = q.shape[1]
        rows_q = (
            mx.array(q).astype(mx.float32).reshape(geometry.kv_heads, -1, geometry.head_dim) * geometry.scale
        )
        lazy: list[tuple[mx.array, mx.array] | None] = []
        for p, page in enumerate(pages):
            visible = visible_rows(page.filled, tokens, None if first_visible is None else first_visible[p])
            stop = int(visible.max(initial=0))
            lazy.append(_attend_page(geometry, rows_q, page, visible, stop) if stop else None)
        mx.eval([pair for pair in lazy if pair is not None])  # one evaluation for all pages
        shape = (geometry.q_heads, tokens)
        empty = Partial(
            np.zeros((*shape, geometry.head_dim), np.float32), np.full(shape, -np.inf, np.float32)
        )
        return [
            empty
            if pair is None
            else Partial(o=np.array(pair[0]).reshape(*shape, -1), lse=np.array(pair[1]).reshape(shape))
            for pair in lazy
        ]

    def fold(self, partials: Sequence[Partial]) -> Partial:
        return merge_all(partials)

    def leave_thread(self) -> None:
        # Streams that outlive their thread abort the process at exit now and then.
        mx.clear_streams()


def _attend_page(
    geometry: Geometry, q: mx.array, page: MlxPage, visible: npt.NDArray[np.int64], stop: int
) -> tuple[mx.array, mx.array]:
    k = page.k[:, :stop].astype(mx.float32)
    v = page.v[:, :stop].astype(mx.float32)
    # A product that overflows counts as the largest float: inf - inf would be NaN.
    s = mx.clip(q @ k.swapaxes(-1, -2), -_FLOAT_MAX, _FLOAT_MAX)  # [kv_heads, group * T, rows]
    if int(visible.min()) < stop:
        limit = mx.array(np.tile(visible, geometry.q_heads // geometry.kv_heads).astype(np.int32))
        s = mx.where(mx.arange(stop) < limit[:, None], s, mx.array(-mx.inf, mx.float32))
    m = s.max(axis=-1, keepdims=True)
    shift = mx.where(m == -mx.inf, mx.zeros_like(m), m)  # rows that see nothing
    weights = mx.exp(s - shift)
    total = weights.sum(axis=-1, keepdims=True)
    total_or_one = mx.where(total == 0, mx.ones_like(total), total)
    o = (weights @ v) / total_or_one
    return o, mx.where(total == 0, m, shift + mx.log(total_or_one))


def _from_numpy(geometry: Geometry, x: npt.NDArray[Any]) -> mx.array:
    array = mx.array(x)
    return array.view(mx.bfloat16) if geometry.dtype == "bfloat16" else array


def _shared_with_numpy(x: mx.array) -> npt.NDArray[Any]:
    return np.asarray(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)


def _to_numpy(x: mx.array) -> npt.NDArray[Any]:
    x = mx.contiguous(x)
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)
