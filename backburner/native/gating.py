"""Opens the C part of gated products (SwiGLU and the attention gate) with ctypes and gives it types."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.native.library import Part

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GatingKernels:
    """The opened library. Arrays are contiguous fp32 of one size; the calls release the GIL."""

    library: ctypes.CDLL

    def swiglu(self, x: Floats, y: Floats) -> Floats:
        """silu(x) * y, in new memory."""
        return self._run(self.library.bb_swiglu, x, y)

    def sigmoid_gate(self, x: Floats, y: Floats) -> Floats:
        """sigmoid(x) * y, in new memory."""
        return self._run(self.library.bb_sigmoid_gate, x, y)

    def _run(self, function: Any, x: Floats, y: Floats) -> Floats:
        out = np.empty(x.shape, np.float32)
        function(x.size, x.ctypes.data, y.ctypes.data, out.ctypes.data)
        return out


def _typed(library: ctypes.CDLL) -> GatingKernels:
    for function in (library.bb_swiglu, library.bb_sigmoid_gate):
        function.argtypes = [ctypes.c_int64, *(ctypes.c_void_p,) * 3]
        function.restype = None
    return GatingKernels(library)


_PART = Part("_gating", _typed)
load_gating, why_missing = _PART.load, _PART.why_missing
