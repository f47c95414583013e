"""Page attention through the C kernels: the fast engine on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.attention.checks import check_append, check_attend, check_page_over, check_rows
from backburner.attention.engine import F32, Geometry, Partial
from backburner.attention.merge import merge_all
from backburner.attention.numpy_engine import STORAGE_DTYPES
from backburner.native.kernels import Kernels, c_geometry

# No memory holds such a page. Beyond it, the kernels' 64 bits could overflow while they round rows and columns up, and
# a stranger's geometry would pass for a small one.
PAGE_BYTES_MAX = 2**48


@dataclass(slots=True)
class NativePage:
    geometry: Geometry
    data: npt.NDArray[np.uint8]  # the layout that native/attention.c describes
    address: int  # of data; asking numpy for it takes longer than the rest of a call's preparation
    filled: int = 0


class NativeEngine:
    """One C call for all the pages of an attend. A row's bits depend on its query and the page only."""

    name = "native"

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def page_bytes(self, geometry: Geometry) -> int:
        if geometry.page_bytes > PAGE_BYTES_MAX:
            return geometry.page_bytes
        return self._kernels.page_bytes(_c(geometry))

    def new_page(self, geometry: Geometry) -> NativePage:
        # zeros() is lazy: memory is taken as rows arrive. The kernels rely on unfilled rows being zero.
        data = np.zeros(self.page_bytes(geometry), np.uint8)
        return NativePage(geometry, data, data.ctypes.data)

    def append(self, page: NativePage, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        check_append(page.geometry, page.filled, k, v, np.dtype(STORAGE_DTYPES[page.geometry.dtype]))
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        self._kernels.append(_c(page.geometry), page.data, page.filled, k, v)
        page.filled += k.shape[1]

    def rows(self, page: NativePage, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        check_rows(page.filled, start, stop)
        geometry = page.geometry
        shape = (geometry.kv_heads, stop - start, geometry.head_dim)
        k = np.empty(shape, STORAGE_DTYPES[geometry.dtype])
        v = np.empty(shape, STORAGE_DTYPES[geometry.dtype])
        self._kernels.rows(_c(geometry), page.data, start, k, v)
        return k, v

    def storage(self, page: NativePage) -> tuple[npt.NDArray[Any], ...]:
        return (page.data,)

    def page_over(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]], filled: int) -> NativePage:
        check_page_over(geometry, arrays, filled, [(self.page_bytes(geometry),)], np.dtype(np.uint8))
        (data,) = arrays
        return NativePage(geometry, data, data.ctypes.data, filled)

    def attend(
        self,
        geometry: Geometry,
        q: F32,
        pages: Sequence[NativePage],
        first_visible: Sequence[int] | None = None,
    ) -> list[Partial]:
        check_attend(geometry, q, pages, first_visible)
        q = np.ascontiguousarray(q, np.float32)
        o = np.empty((len(pages), *q.shape), np.float32)
        lse = np.empty((len(pages), *q.shape[:2]), np.float32)
        self._kernels.attend(
            _c(geometry),
            q,
            [page.address for page in pages],
            [page.filled for page in pages],
            None
            if first_visible is None
            else [int(rows) for rows in first_visible],  # ctypes refuses numpy's
            o,
            lse,
        )
        return [Partial(o=o[p], lse=lse[p]) for p in range(len(pages))]

    def fold(self, partials: Sequence[Partial]) -> Partial:
        return merge_all(partials)

    def leave_thread(self) -> None:
        pass


def _c(geometry: Geometry) -> Any:
    g = geometry
    return c_geometry(g.q_heads, g.kv_heads, g.head_dim, g.page_tokens, g.dtype, g.scale)
