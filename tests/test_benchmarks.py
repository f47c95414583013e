"""The benchmarks of reading run to their end and find equal answers. So small, their figures mean nothing.

Of the others: none runs MLX on a BLAS that is not served.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, environment


def run(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON object that a benchmark prints last."""
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_prefill_reads_split_in_every_part() -> None:
    found = run("prefill.py", "--small", "--tokens", "1536", "--rounds", "1")
    assert found["identical"] is True
    assert list(found["rows"]) == ["half", "slow", "depth", "past"]
    rows = found["rows"]
    # The slow worker's seam is chosen from what was measured, and none may pay on a busy machine.
    assert [rows[part]["seam"] for part in ("half", "depth", "past")] == [6, 6, 6]
    assert rows["past"]["held_tokens"] > 0
    for name in ("tok_s_alone", "tok_s", "speedup", "ideal", "of_ideal"):
        assert found[name] > 0


def test_the_best_that_a_split_read_can_do() -> None:
    """The closed form of equal sides, and a worker that is waited for: host's last layer follows its last one."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from reads import pipelined_s  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    n, layers, seam = 16, 16, 8
    tail = layers - seam
    equal = pipelined_s([seam] * n, [tail] * (n - 1), tail, tail, [0] * n)
    assert equal == n * seam + tail
    slow = pipelined_s([seam] * n, [1.5 * tail] * (n - 1), tail, tail, [0] * n)
    assert slow == seam + (n - 1) * 1.5 * tail + 1


def test_depth_grows_one_conversation_past_its_window() -> None:
    small = ("--window-tokens", "512", "--page-tokens", "128", "--split-layer", "4", "--new-tokens", "4")
    found = run("depth.py", "--lengths", "1024", "2048", "3072", "--alone-to", "3072", *small)
    assert found["identical"] is True
    assert found["compared"] == 3
    assert [row["depth"] for row in found["rows"]] == [1024, 2048, 3072]
    assert found["rows"][1]["tokens"] < 1536  # what was read stayed
    assert found["rows"][-1]["held_tokens"] >= 2048
    assert {"memory_growth_past_window_mib", "kv_past_window_mib"} <= set(found)


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_mlx_is_imported_after_the_blas(script: Path) -> None:
    """Imported first, MLX keeps its reference BLAS, and what is measured is 80 times slower than what is served."""
    ready = False
    for statement in ast.parse(script.read_text()).body:
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom):
            names.append(statement.module or "")
        assert ready or not any(name.startswith("mlx") for name in names), ast.unparse(statement)
        ready = ready or any(name.startswith("backburner.model") for name in names)
