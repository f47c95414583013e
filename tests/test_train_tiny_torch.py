"""The trainer itself, where PyTorch is installed (`pip install '.[train]'`): stops, resumes, shares steps."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[train]'")

from scripts.train_tiny.optimizer import COURSES, course, rate  # noqa: E402

ROOT = Path(__file__).parent.parent


def run(folder: Path, *flags: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "scripts.train_tiny.train",
        str(folder),
        "--layers",
        "4",
        "--steps",
        "131",
    ]
    subprocess.run([*command, *flags], cwd=ROOT, check=True, timeout=600)
    return torch.load(folder / "checkpoint.pt", map_location="cpu", weights_only=False)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    # Both processes take part: what differed between them would show after their next shared gradient.
    straight = run(tmp_path / "a", "--stop-after", "4")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_bytes((tmp_path / "a" / "tokenizer.json").read_bytes())
    run(tmp_path / "b", "--stop-after", "2")
    resumed = run(tmp_path / "b", "--stop-after", "4", "--resume")
    assert resumed["step"] == straight["step"] == 4
    for name, value in straight["model"].items():
        assert torch.equal(value, resumed["model"][name]), name


def test_courses_begin_warm_and_end_cold() -> None:
    steps = COURSES[-1][0]
    start = 0
    for index, (stop, top, _) in enumerate(COURSES):
        assert course(start, steps).index == course(stop - 1, steps).index == index
        assert rate(start, steps) < 0.1 * top
        assert rate(stop - 1, steps) < 0.01 * top
        assert max(rate(step, steps) for step in range(start, stop)) > 0.9 * top
        start = stop
