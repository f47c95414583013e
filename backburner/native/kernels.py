"""Opens the C page-attention kernels with ctypes and gives them types."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.native.library import Part

_DTYPE_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}


class _Geometry(ctypes.Structure):
    """Mirrors Geometry in attention.c."""

    _fields_ = (
        ("q_heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("page_tokens", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


@functools.lru_cache(maxsize=64)
def c_geometry(q_heads: int, kv_heads: int, head_dim: int, page_tokens: int, dtype: str, scale: float) -> Any:
    """The geometry as the kernels want it: a pointer to a C struct."""
    struct = _Geometry(q_heads, kv_heads, head_dim, page_tokens, _DTYPE_CODES[dtype], scale)
    return ctypes.pointer(struct)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The opened library. Callers check shapes; every call releases the GIL."""

    isa: str
    library: ctypes.CDLL

    def page_bytes(self, geometry: Any) -> int:
        return int(self.library.bb_page_bytes(geometry))

    def append(
        self, geometry: Any, page: npt.NDArray[np.uint8], start: int, k: npt.NDArray[Any], v: npt.NDArray[Any]
    ) -> None:
        """k, v: contiguous [kv_heads, rows, head_dim]."""
        self.library.bb_append(geometry, page.ctypes.data, start, k.shape[1], k.ctypes.data, v.ctypes.data)

    def rows(
        self, geometry: Any, page: npt.NDArray[np.uint8], start: int, k: npt.NDArray[Any], v: npt.NDArray[Any]
    ) -> None:
        """Fills k, v: contiguous [kv_heads, rows, head_dim]."""
        self.library.bb_rows(geometry, page.ctypes.data, start, k.shape[1], k.ctypes.data, v.ctypes.data)

    def attend(
        self,
        geometry: Any,
        q: npt.NDArray[np.float32],
        addresses: Sequence[int],
        filled: Sequence[int],
        first_visible: Sequence[int] | None,
        o: npt.NDArray[np.float32],
        lse: npt.NDArray[np.float32],
    ) -> None:
        """Fills o [pages, q_heads, T, head_dim] and lse [pages, q_heads, T]; all arrays contiguous."""
        n = len(addresses)
        status = self.library.bb_attend(
            geometry,
            q.ctypes.data,
            q.shape[1],
            (ctypes.c_void_p * n)(*addresses),
            (ctypes.c_int64 * n)(*filled),
            None if first_visible is None else (ctypes.c_int64 * n)(*first_visible),
            n,
            o.ctypes.data,
            lse.ctypes.data,
        )
        if status:
            raise MemoryError("no memory for the attention kernel's scratch space")

    def read(self, words: npt.NDArray[np.uint64]) -> int:
        """Reads a contiguous array at the speed of memory and returns the exclusive or of its words."""
        return int(self.library.bb_read(words.ctypes.data, words.size))


def _typed(library: ctypes.CDLL) -> Kernels:
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    geometry = ctypes.POINTER(_Geometry)
    library.bb_page_bytes.argtypes = [geometry]
    library.bb_page_bytes.restype = int64
    for move in (library.bb_append, library.bb_rows):
        move.argtypes = [geometry, pointer, int64, int64, pointer, pointer]
        move.restype = None
    library.bb_attend.argtypes = [
        *(geometry, pointer, int64),
        *(pointer, pointer, pointer, int64),
        *(pointer, pointer),
    ]
    library.bb_attend.restype = ctypes.c_int
    library.bb_read.argtypes = [pointer, int64]
    library.bb_read.restype = ctypes.c_uint64
    library.bb_isa.restype = ctypes.c_char_p
    return Kernels(isa=library.bb_isa().decode(), library=library)


_PART = Part("_kernels", _typed)
load_kernels, why_missing = _PART.load, _PART.why_missing
