"""Finds the share of old keys that baked pages should serve on this machine, by measuring both engines in turn."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backburner.attention.baked import BakedEngine, BakedPage, BakedRun
from backburner.attention.engine import F32, Geometry
from backburner.attention.numpy_engine import STORAGE_DTYPES
from backburner.coreml.blob import new_image, patch
from backburner.coreml.package import PACKAGE, Template, write_package
from backburner.coreml.runtime import PageRuntime
from backburner.worker.bake_share import Share


@dataclass(frozen=True, slots=True)
class Trial:
    """Medians of one length and query, in milliseconds; at[n]: with n baked pages, the rest by the ordinary engine."""

    keys: int
    tokens: int
    at_ms: tuple[float, ...]

    @property
    def best(self) -> int:
        return min(range(len(self.at_ms)), key=self.at_ms.__getitem__)


def calibrate(
    engine: BakedEngine,
    geometry: Geometry,
    template: Template,
    runtime: PageRuntime,
    runs: int,
    rounds: int,
    folder: Path,
) -> tuple[Share, list[Trial]]:
    """Measures 1 .. `runs` runs of keys, for one token and for eight. `folder`: for the packages of the runtime.

    Every way takes its turn in each round, without pauses between: an idle engine lowers its clock.
    """
    made = [_run(engine, geometry, template, runtime, n, folder) for n in range(runs)]
    trials = []
    many = min(8, template.manifest.shape.query_tokens)
    for length in sorted({1, max(1, runs // 2), runs}):
        for tokens in sorted({1, many}):
            q = np.random.default_rng(tokens).standard_normal((geometry.q_heads, tokens, geometry.head_dim))
            trials.append(_trial(engine, geometry, made[:length], q.astype(np.float32), rounds))
    longest = [trial for trial in trials if trial.keys == trials[-1].keys]
    one, several = longest[0].best / runs, longest[-1].best / runs
    return Share(one, several), trials


def _trial(engine: BakedEngine, geometry: Geometry, runs: list[BakedRun], q: F32, rounds: int) -> Trial:
    ways: list[Callable[[], Any]] = []
    for baked in range(len(runs) + 1):
        pages = [*runs[:baked], *(page for run in runs[baked:] for page in run.raw)]
        ways.append(lambda pages=pages: engine.fold(engine.attend(geometry, q, pages)))  # type: ignore[misc]
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, found in zip(ways, times, strict=True):
            begun = time.perf_counter()
            way()
            if number:  # the first round warms up
                found.append((time.perf_counter() - begun) * 1e3)
    keys = sum(len(run.raw) for run in runs) * geometry.page_tokens
    return Trial(keys, q.shape[1], tuple(statistics.median(found) for found in times))


def _run(
    engine: BakedEngine, geometry: Geometry, template: Template, runtime: PageRuntime, seed: int, folder: Path
) -> BakedRun:
    """Made-up rows, as pages and as a baked page."""
    shape = template.manifest.shape
    k, v = np.random.default_rng(seed).standard_normal(
        (2, shape.kv_heads, shape.page_tokens, shape.head_dim), np.float32
    )
    if geometry.dtype == "bfloat16":
        k, v = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (k, v))
    else:
        k, v = (x.astype(STORAGE_DTYPES[geometry.dtype]) for x in (k, v))
    pages = []
    for start in range(0, shape.page_tokens, geometry.page_tokens):
        page = engine.new_page(geometry)
        stop = start + geometry.page_tokens
        engine.append(page, np.ascontiguousarray(k[:, start:stop]), np.ascontiguousarray(v[:, start:stop]))
        pages.append(page)
    image = new_image(template.manifest)
    exponents = patch(template.manifest, image, k, v)
    package = None
    if runtime.needs_package:
        package = folder / f"run-{seed}"
        write_package(package / PACKAGE, template.spec, image)
    predict = runtime.load(template.manifest, image, package)
    return BakedRun(BakedPage(geometry, template.manifest, exponents, predict, image.nbytes), tuple(pages))
