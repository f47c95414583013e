"""Makes MLX on a Linux CPU use our matrix products, or NumPy's OpenBLAS, for its fp32 matmul.

MLX's wheel bundles the reference BLAS (2.4 GFLOP/s). Of what libmlx takes, `cblas_sgemm` and `cblas_dgemm`
matter here: `cblas_cgemm` is complex, and the LAPACK routines serve `mx.linalg`, which our models do not use.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backburner.native.library import ISA_VARIABLE, path_of, wanted_isa


@dataclass(frozen=True, slots=True)
class BlasStatus:
    """Whether MLX's products are forwarded, and why (not)."""

    forwarded: bool
    reason: str


_FORWARDED = BlasStatus(
    True, "fp32 products run on our kernels where they are faster, else on NumPy's OpenBLAS"
)


def forward_blas() -> BlasStatus:
    """Call it before anything imports mlx.core: the first definition of a symbol wins. Safe to call again."""
    if sys.platform != "linux":
        return BlasStatus(False, "MLX uses Metal and Accelerate on this platform")
    path = path_of("_blas")
    if path is None:
        return BlasStatus(False, "the C part _blas was not built")
    if _is_open(path):
        return _FORWARDED
    if "mlx.core" in sys.modules:
        return BlasStatus(False, "mlx.core was imported before forward_blas() was called")
    openblas = _numpy_openblas()
    if isinstance(openblas, str):
        return BlasStatus(False, openblas)
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return BlasStatus(False, f"the BLAS forwarder cannot be opened: {error}")
    status = library.bb_blas_start(
        ctypes.cast(openblas.scipy_cblas_sgemm64_, ctypes.c_void_p),
        ctypes.cast(openblas.scipy_cblas_dgemm64_, ctypes.c_void_p),
        wanted_isa(),
    )
    if status:
        # The symbols are global now, so they have to work: the forwarder keeps to its baseline.
        wanted = os.environ[ISA_VARIABLE]
        return BlasStatus(True, f"{ISA_VARIABLE}={wanted} is not available: our kernels keep to the baseline")
    return _FORWARDED


def _is_open(path: str) -> bool:
    try:
        # RTLD_NOLOAD: a handle only if the library is already in the process.
        ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _numpy_openblas() -> ctypes.CDLL | str:
    """The OpenBLAS that NumPy's wheel has brought and loaded; or why there is none."""
    folder = Path(np.__file__).resolve().parent.parent / "numpy.libs"
    candidates = sorted(folder.glob("libscipy_openblas64_*.so*"))
    if not candidates:
        return "this NumPy does not bundle OpenBLAS (it is not the wheel from PyPI)"
    try:
        library = ctypes.CDLL(str(candidates[0]))
    except OSError as error:
        return f"NumPy's OpenBLAS cannot be opened: {error}"
    for symbol in ("scipy_cblas_sgemm64_", "scipy_cblas_dgemm64_"):
        if not hasattr(library, symbol):
            return f"NumPy's OpenBLAS has no {symbol}"
    # Several OpenBLAS threads would fight with MLX's own thread and with a worker on the next core; the
    # planner assumes a core each.
    if "OPENBLAS_NUM_THREADS" not in os.environ and hasattr(library, "scipy_openblas_set_num_threads64_"):
        library.scipy_openblas_set_num_threads64_(1)
    return library
