"""A short form of benchmarks/survive.py: each fault once and each moment, in this process."""

from pathlib import Path

import pytest

from backburner.engine import worker_link
from tests.survival import FAULTS, MOMENTS, run_cell

TIMEOUT_S = 1.0

CELLS = [
    ("SIGKILL", "rows streaming"),
    ("SIGKILL", "decode"),
    ("SIGSTOP", "middle"),
    ("half-open link", "state return"),
    ("corrupt frame", "page move"),
    ("corrupt frame", "first ubatch"),
    ("out of memory", "middle"),
    ("restart, memory empty", "first ubatch"),
    ("restart, memory empty", "decode"),
    ("restart, memory kept", "page move"),
    ("restart, memory kept", "state return"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(worker_link, "RETRY_INTERVAL_S", 0.2)
    monkeypatch.setattr(worker_link, "RETRY_GREETING_S", 0.5)


@pytest.mark.parametrize(("fault", "moment"), CELLS)
def test_a_reply_survives(fault: str, moment: str, tmp_path: Path) -> None:
    cell = run_cell(fault, moment, tmp_path, TIMEOUT_S, processes=False)
    assert cell.passed, cell.row()
    assert cell.identical
    if cell.notice_s is not None:
        assert cell.notice_s < (2.0 if FAULTS[fault] == "eof" else 10.0)


def test_each_fault_and_each_moment_is_tried() -> None:
    assert {fault for fault, _ in CELLS} == set(FAULTS)
    assert {moment for _, moment in CELLS} == set(MOMENTS)
