"""Page attention on one core: each engine's time against what the core's memory and arithmetic allow.

    python benchmarks/page.py [--rounds 15] [--core 1] [--json]

Decode: q [24, 1, 256] on K, V [4, 16384, 256] in four pages. Prefill: q [24, 256, 256] on one page of 4,096.
Read bandwidth and sgemm rate are measured in the same rounds, since other work on the machine changes both.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from harness import GEMM_SHAPE, READ_BYTES, fair_environment, pin, read_buffer, usable_cores

from backburner.attention.engine import Geometry
from backburner.attention.select import make_engine
from backburner.native.blas import forward_blas
from backburner.native.kernels import load_kernels, why_missing

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, PAGES = 24, 4, 256, 4096, 4
PREFILL_TOKENS = 256
SUBJECTS = (
    ("native", "float32"),
    ("native", "float16"),
    ("native", "bfloat16"),
    ("numpy", "float32"),
    ("mlx", "float32"),
)


@dataclass(frozen=True, slots=True)
class Row:
    engine: str
    dtype: str
    ms: float
    limit_ms: float  # the larger of bytes / read bandwidth and FLOP / sgemm rate
    times_limit: float
    gb_per_s: float
    gflop_per_s: float
    of_sgemm: float


@dataclass(frozen=True, slots=True)
class Result:
    queries: int
    positions: int
    read_gb_per_s: float
    sgemm_gflop_per_s: float
    rows: list[Row]


Name = tuple[str, str, int]  # engine or yardstick, dtype, queries
READ: Name = ("read", "", 0)
SGEMM: Name = ("sgemm", "", 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="medians are over this many rounds")
    parser.add_argument("--core", type=int, help="the core to run on (default: the last one allowed)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    fair_environment()
    pin(usable_cores()[-1] if arguments.core is None else arguments.core)
    blas = forward_blas()
    yardsticks = prepare_yardsticks()
    subjects, missing = prepare_subjects()
    for line in missing:
        print(f"not measured: {line}")
    kernels = load_kernels()
    isa = kernels.isa if kernels else "none"
    print(f"one core, medians of {arguments.rounds} rounds; kernels: {isa}; MLX: {blas.reason}")
    results = []
    for tokens, rounds in ((1, arguments.rounds), (PREFILL_TOKENS, max(3, arguments.rounds // 3))):
        chosen = {name: task for name, task in subjects.items() if name[2] == tokens}
        results.append(summarise(run_rounds(yardsticks | chosen, rounds), tokens))
        print_table(results[-1])
    if arguments.json:
        output = {"benchmark": "page", "rounds": arguments.rounds, "isa": isa}
        print(json.dumps(output | {"results": [asdict(result) for result in results]}))


def prepare_yardsticks() -> dict[Name, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    m, k, n = GEMM_SHAPE
    x, w = rng.random((m, k), np.float32), rng.random((n, k), np.float32)
    return {
        READ: read_buffer(),
        SGEMM: lambda: x @ w.T,
    }


def prepare_subjects() -> tuple[dict[Name, Callable[[], Any]], list[str]]:
    """What is to be timed, by name; and which engines are missing, with the reason."""
    rng = np.random.default_rng(1)
    tasks: dict[Name, Callable[[], Any]] = {}
    missing = []
    for engine_name, dtype in SUBJECTS:
        if engine_name == "native" and load_kernels() is None:
            missing.append(f"native {dtype}: {why_missing()}")
            continue
        engine = make_engine(engine_name)
        geometry = Geometry(Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, dtype, HEAD_DIM**-0.5)
        pages = [filled_page(engine, geometry, rng) for _ in range(PAGES)]
        for tokens, some in ((1, pages), (PREFILL_TOKENS, pages[:1])):
            q = rng.standard_normal((Q_HEADS, tokens, HEAD_DIM), np.float32)
            tasks[engine_name, dtype, tokens] = attend_task(engine, geometry, q, some)
    return tasks, missing


def filled_page(engine: Any, geometry: Geometry, rng: np.random.Generator) -> Any:
    page = engine.new_page(geometry)
    k, v = rng.standard_normal((2, KV_HEADS, PAGE_TOKENS, HEAD_DIM), np.float32)
    if geometry.dtype == "bfloat16":
        k, v = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (k, v))
    elif geometry.dtype == "float16":
        k, v = k.astype(np.float16), v.astype(np.float16)
    engine.append(page, k, v)
    return page


def attend_task(engine: Any, geometry: Geometry, q: np.ndarray, pages: list[Any]) -> Callable[[], Any]:
    return lambda: engine.attend(geometry, q, pages)


def run_rounds(tasks: dict[Name, Callable[[], Any]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of each task in each round. The tasks alternate, so that a disturbance hits all of them alike."""
    seconds: dict[Name, list[float]] = {name: [] for name in tasks}
    for round_ in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if round_:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summarise(seconds: dict[Name, list[float]], tokens: int) -> Result:
    median = {name: statistics.median(values) for name, values in seconds.items()}
    read_bytes_per_s = READ_BYTES / median.pop(READ)
    m, k, n = GEMM_SHAPE
    sgemm_flop_per_s = 2 * m * k * n / median.pop(SGEMM)
    positions = PAGE_TOKENS * (PAGES if tokens == 1 else 1)
    flop = 4 * Q_HEADS * tokens * positions * HEAD_DIM
    rows = []
    for (engine, dtype, _), elapsed in sorted(median.items(), key=lambda item: item[1]):
        size = 2 * KV_HEADS * positions * HEAD_DIM * (4 if dtype == "float32" else 2)
        limit = max(size / read_bytes_per_s, flop / sgemm_flop_per_s)
        rows.append(
            Row(
                engine=engine,
                dtype=dtype,
                ms=elapsed * 1e3,
                limit_ms=limit * 1e3,
                times_limit=elapsed / limit,
                gb_per_s=size / elapsed / 1e9,
                gflop_per_s=flop / elapsed / 1e9,
                of_sgemm=flop / elapsed / sgemm_flop_per_s,
            )
        )
    return Result(tokens, positions, read_bytes_per_s / 1e9, sgemm_flop_per_s / 1e9, rows)


def print_table(result: Result) -> None:
    print(
        f"\n{result.queries} queries on {result.positions} positions; "
        f"read bandwidth {result.read_gb_per_s:.1f} GB/s, sgemm {result.sgemm_gflop_per_s:.0f} GFLOP/s"
    )
    print(
        f"{'engine':8}{'dtype':10}{'ms':>9}{'limit':>9}{'x limit':>9}{'GB/s':>8}{'GFLOP/s':>9}{'of sgemm':>10}"
    )
    for row in result.rows:
        print(
            f"{row.engine:8}{row.dtype:10}{row.ms:9.2f}{row.limit_ms:9.2f}{row.times_limit:9.2f}"
            f"{row.gb_per_s:8.1f}{row.gflop_per_s:9.0f}{row.of_sgemm:10.0%}"
        )


if __name__ == "__main__":
    main()
