"""A worker in a process of its own: the bits that the same engine gives here, and modules of its own."""

from pathlib import Path

import numpy as np
import pytest

from backburner.worker.loopback import LoopbackWorker
from tests.host import ENGINES, generate, generate_with_state, host, long_prompt
from tests.processes import ROOT


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_bitwise_equal_with_pages_in_another_process(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    prompt = long_prompt()
    with host(engine=engine) as runner:
        tokens_alone, logits_alone = generate(runner, prompt, 8)
    worker = LoopbackWorker(2**28)
    try:
        with host(worker.connector(engine), engine=engine) as runner:
            tokens, logits, state = generate_with_state(runner, prompt, 8)
            assert state.table.held >= 4, "the test must really use held pages"
    finally:
        worker.close()
    assert tokens == tokens_alone
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))


def test_a_worker_takes_no_modules_from_the_folder_where_the_host_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('not the real one')\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    worker = LoopbackWorker(2**20)
    try:
        worker.connect().close()
    finally:
        worker.close()
