"""What the benchmarks share: cores, medians, the core's own limits, and the JSON line at the end."""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BANDWIDTH_BYTES = 256 * 2**20  # well beyond the last-level cache
GEMM_SHAPE = (256, 1024, 4096)  # M, K, N: a ubatch through a projection


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def pin(core: int) -> None:
    """Keeps this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def median_s(run: Callable[[], object], rounds: int) -> float:
    """Median seconds of `rounds` calls, after one that is not counted."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def core_limits() -> tuple[float, float]:
    """This core's read bandwidth in bytes/s and its fp32 matrix product rate in FLOP/s, through NumPy."""
    buffer = np.ones(BANDWIDTH_BYTES // 4, np.float32)
    read_s = min(median_s(buffer.max, 5), median_s(lambda: buffer.dot(buffer), 5) / 1.0)
    m, k, n = GEMM_SHAPE
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    return buffer.nbytes / read_s, 2 * m * k * n / median_s(lambda: a @ b, 5)


def finish(result: dict[str, Any], as_json: bool) -> None:
    """A table for people, then, if asked, one JSON object as the last line."""
    for name, value in result.items():
        print(f"{name:>28}  {value:,.4g}" if isinstance(value, float) else f"{name:>28}  {value}")
    if as_json:
        print(json.dumps(result))
