"""What the benchmarks share: cores, medians, the core's own limits, and the JSON line at the end."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from backburner.native.kernels import load_kernels

READ_BYTES = 256 * 2**20  # far beyond any cache
GEMM_SHAPE = (256, 1024, 4096)  # M, K, N: a ubatch through a linear layer


# Set on some shared machines to hold OpenBLAS to an older core's kernels: 122 GFLOP/s where 209 are possible.
PINNED_KERNELS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def fair_environment() -> None:
    """Starts this script again, if need be, with one BLAS thread and the kernels that fit the core. Call it first."""
    wanted = {k: v for k, v in os.environ.items() if k not in PINNED_KERNELS} | {
        "OPENBLAS_NUM_THREADS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if wanted != dict(os.environ):
        os.execve(sys.executable, [*sys.orig_argv], wanted)


CAN_PIN = hasattr(os, "sched_setaffinity")  # not on macOS


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if CAN_PIN else [0]


def pin(core: int) -> None:
    """Keeps this process on one core, where the system can."""
    if CAN_PIN:
        os.sched_setaffinity(0, {core})


def pin_process(pid: int, core: int) -> None:
    """Moves another process to a core, with all the threads that it has by now."""
    if CAN_PIN:
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, {core})


def median_s(run: Callable[[], object], rounds: int) -> float:
    """Median seconds of `rounds` calls, after one that is not counted."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_buffer() -> Callable[[], object]:
    """Reads READ_BYTES of memory once, as fast as the core can."""
    words = np.ones(READ_BYTES // 8, np.uint64)
    kernels = load_kernels()
    return (lambda: kernels.read(words)) if kernels else words.max


def core_limits() -> tuple[float, float]:
    """This core's read bandwidth in bytes/s and its fp32 matrix product rate (NumPy's OpenBLAS) in FLOP/s."""
    m, k, n = GEMM_SHAPE
    a, b = np.ones((m, k), np.float32), np.ones((n, k), np.float32)
    return READ_BYTES / median_s(read_buffer(), 7), 2 * m * k * n / median_s(lambda: a @ b.T, 7)


def finish(result: dict[str, Any], as_json: bool) -> None:
    """A table for people, then, if asked, one JSON object as the last line."""
    for name, value in result.items():
        print(f"{name:>28}  {value:,.4g}" if isinstance(value, float) else f"{name:>28}  {value}")
    if as_json:
        print(json.dumps(result))
