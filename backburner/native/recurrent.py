"""Opens the C part of a recurrent layer (all of it between the projections) with ctypes and gives it types."""

import ctypes
from dataclasses import dataclass
from typing import Any

from backburner.native.library import Part

# Heads are read a vector at a time, the widest of which has 16 floats.
HEAD_DIM_MULTIPLE = 16


class CLayer(ctypes.Structure):
    """Mirrors Layer in recurrent.c, which explains the fields."""

    _fields_ = (
        ("k_heads", ctypes.c_int32),
        ("v_heads", ctypes.c_int32),
        ("dk", ctypes.c_int32),
        ("dv", ctypes.c_int32),
        ("taps", ctypes.c_int32),
        ("norm_eps", ctypes.c_float),
        ("conv", ctypes.c_void_p),
        ("a_log", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("qkv_row", ctypes.c_int64),
        ("k_offset", ctypes.c_int64),
        ("v_offset", ctypes.c_int64),
        ("qk_head", ctypes.c_int64),
        ("v_group", ctypes.c_int64),
        ("z_row", ctypes.c_int64),
        ("z_group", ctypes.c_int64),
        ("ba_row", ctypes.c_int64),
        ("ba_group", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class RecurrentKernel:
    """The opened library. Callers check shapes; the call releases the GIL."""

    isa: str
    max_taps: int
    library: ctypes.CDLL

    def run(
        self,
        layer: Any,
        tokens: int,
        qkv: int,
        z: int,
        b: int,
        a: int,
        conv_in: int | None,
        conv_out: int,
        state: int,
    ) -> None:
        """Runs tokens through a layer (a pointer to CLayer). Addresses are of fp32 values, laid out as it says.

        The output takes z's place, the state [v_heads, dv, dk] changes in place, conv_out [taps - 1, channels] is
        filled.
        """
        status = self.library.bb_recurrent(layer, tokens, qkv, z, b, a, conv_in, conv_out, state)
        if status:
            raise MemoryError("no memory for the recurrent layer's scratch space")


def _typed(library: ctypes.CDLL) -> RecurrentKernel:
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    library.bb_recurrent.argtypes = [ctypes.POINTER(CLayer), int64, *(pointer,) * 7]
    library.bb_recurrent.restype = ctypes.c_int
    library.bb_isa.restype = ctypes.c_char_p
    library.bb_recurrent_max_taps.restype = int64
    return RecurrentKernel(library.bb_isa().decode(), int(library.bb_recurrent_max_taps()), library)


_PART = Part("_recurrent", _typed)
load_recurrent, why_missing = _PART.load, _PART.why_missing
