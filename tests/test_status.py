"""What a runner and its workers tell of themselves: counts that only grow, also over a lost link."""

from pathlib import Path
from typing import Any

import pytest

from backburner.engine.tail import TailRead
from backburner.model.load import TINY
from tests.host import generate, host, link_to, long_prompt, serving, until

MODEL = ("tiny", TINY)
PROMPT = long_prompt() * 4
WIDE = 100_000  # a window that nothing leaves


def test_split_reads_are_counted_with_what_their_worker_did_and_short_ones_are_not() -> None:
    with (
        serving(model=MODEL) as server,
        host(lambda: link_to(server), split_layer=4, window_tokens=WIDE, sessions=2) as runner,
    ):
        assert runner.status().sessions == 0
        generate(runner, PROMPT[:300], 1)
        assert (runner.status().split_reads, runner.status().whole_reads) == (0, 0)
        generate(runner, [t ^ 1 for t in PROMPT[:800]], 1)
        status = runner.status()
        assert (status.split_reads, status.whole_reads, status.lost_reads) == (1, 0, 0)
        assert status.split_tokens == 768  # all but the last ubatch
        assert 0 < status.split_worker_s < 60
        assert status.seam == 4
        assert status.sessions == 2


def test_a_long_read_that_no_worker_helps_with_is_counted_as_whole() -> None:
    with serving() as server, host(lambda: link_to(server), split_layer=4, window_tokens=WIDE) as runner:
        generate(runner, PROMPT[:800], 1)
        assert (runner.status().split_reads, runner.status().whole_reads) == (0, 1)


def test_a_host_that_is_not_to_split_counts_no_read() -> None:
    with (
        serving(model=MODEL) as server,
        host(lambda: link_to(server), split_layer=0, window_tokens=WIDE) as runner,
    ):
        generate(runner, PROMPT[:800], 1)
        assert (runner.status().split_reads, runner.status().whole_reads) == (0, 0)


def test_a_read_that_loses_its_worker_is_counted_as_split_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    push = TailRead.push

    def lose(self: TailRead, position: int, *arguments: Any) -> None:
        if position == 512:
            self.stages[0].connection.link.close()
        push(self, position, *arguments)

    monkeypatch.setattr(TailRead, "push", lose)
    with (
        serving(model=MODEL) as server,
        host(lambda: link_to(server), split_layer=4, window_tokens=WIDE) as runner,
    ):
        generate(runner, PROMPT[:1000], 1)
        status = runner.status()
    assert (status.split_reads, status.whole_reads, status.lost_reads) == (1, 0, 1)


def test_traffic_is_counted_on_over_a_reconnect(tmp_path: Path) -> None:
    with (
        serving() as server,
        host(lambda: link_to(server), spill_folder=tmp_path, sessions=1) as runner,
    ):
        greeted = runner.worker_statuses()[0]
        generate(runner, PROMPT[:700], 2)
        before = runner.worker_statuses()[0]
        assert before.moved_pages > 0
        assert before.bytes_sent > greeted.bytes_sent > 0
        assert before.bytes_received > greeted.bytes_received > 0
        assert before.exchanges > greeted.exchanges > 0
        worker = runner.workers[0]
        worker._current.link.close()
        until(lambda: worker.await_return(1.0), 20.0)
        after = worker.status()
        assert after.reconnects == 1
        # The second greeting comes on top.
        assert after.bytes_sent > before.bytes_sent
        assert after.bytes_received > before.bytes_received
        assert after.exchanges > before.exchanges
        assert after.moved_pages >= before.moved_pages


def test_spilled_pages_and_the_answers_from_them_are_counted(tmp_path: Path) -> None:
    with (
        serving() as server,
        host(lambda: link_to(server), spill_folder=tmp_path, sessions=1) as runner,
    ):
        generate(runner, PROMPT[:700], 2)
        until(lambda: runner.status().spill_pages > 0)
        status = runner.status()
        assert status.spill_bytes > 0
        assert status.spill_partials == 0, "the worker has answered for all"
        worker = runner.workers[0]
        worker._closing = True  # it is not looked for again
        worker._current.link.close()
        generate(runner, PROMPT[:740], 2)
        assert runner.status().spill_partials > 0
        runner.sessions.clear()
        assert (runner.status().spill_pages, runner.status().spill_bytes, runner.status().sessions) == (
            0,
            0,
            0,
        )
