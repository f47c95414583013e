"""A short form of benchmarks/survive.py: each fault once and each moment, in this process."""

from pathlib import Path

import pytest

from backburner.engine import worker_link
from tests.survival import FAULTS, MOMENTS, run_cell

TIMEOUT_S = 1.0

CELLS = [
    ("SIGKILL", "rows streaming", 2),
    ("SIGKILL", "decode", 4),
    ("SIGSTOP", "middle", 2),
    ("half-open link", "state return", 4),
    ("corrupt frame", "page move", 4),
    ("corrupt frame", "first ubatch", 4),
    ("out of memory", "middle", 2),
    ("restart, memory empty", "first ubatch", 4),
    ("restart, memory empty", "decode", 2),
    ("restart, memory kept", "page move", 4),
    ("restart, memory kept", "state return", 2),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(worker_link, "RETRY_INTERVAL_S", 0.2)
    monkeypatch.setattr(worker_link, "RETRY_GREETING_S", 0.5)


@pytest.mark.parametrize(("fault", "moment", "seam"), CELLS)
def test_a_reply_survives(fault: str, moment: str, seam: int, tmp_path: Path) -> None:
    cell = run_cell(fault, moment, seam, tmp_path, TIMEOUT_S, processes=False)
    assert cell.passed, cell.row()
    assert cell.identical
    if cell.notice_s is not None:
        assert cell.notice_s < (2.0 if FAULTS[fault] == "eof" else 10.0)


def test_each_fault_and_each_moment_is_tried() -> None:
    assert {fault for fault, _, _ in CELLS} == set(FAULTS)
    assert {moment for _, moment, _ in CELLS} == set(MOMENTS)
