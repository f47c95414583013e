"""What may go wrong in a split read: the worker is lost, refuses, or answers something else; no token is another."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburner.attention.select import make_engine
from backburner.engine import seam as seam_module
from backburner.engine.runner import ModelRunner
from backburner.engine.sequence import Sequence
from backburner.engine.tail import TailRead
from backburner.transport.fields import Array
from backburner.transport.messages import Message, TailChunk
from backburner.worker.mirror import Mirror
from backburner.worker.server import WorkerServer
from backburner.worker.tail import Tail
from tests import split_support
from tests.crossing import of, watched
from tests.host import (
    ATTENTION,
    BEST_ENGINE,
    generate,
    generate_with_state,
    host,
    link_to,
    same,
    serving,
    tiny,
    until,
)
from tests.split_support import MODEL, OTHER, PAGE, PROMPT, SEAM, TOKENS, WIDE, check, seam_of

shared = split_support.shared
worker = split_support.worker


def test_a_worker_that_runs_out_of_memory_leaves_the_rest_to_the_host() -> None:
    sent: list[Message] = []
    with (
        serving(300_000, model=MODEL) as server,  # four pages of one layer
        host(lambda: watched(server, sent.append), split_layer=SEAM, window_tokens=WIDE) as runner,
    ):
        check(runner, PROMPT[:1025])
        assert len(of(sent, TailChunk)) > 1, "it was split until then"
        check(runner, PROMPT[:600])


@pytest.mark.parametrize("seam", [0, SEAM])
def test_after_a_split_read_its_tail_gives_way_to_pages(seam: int) -> None:
    pages, window = 18, 512
    prompt = (PROMPT + OTHER)[:1700]
    page_bytes = make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(PAGE)) * len(ATTENTION)
    with (
        serving(pages * page_bytes, model=MODEL) as server,
        host(lambda: link_to(server), split_layer=seam, window_tokens=window, sessions=1) as runner,
    ):
        check(runner, prompt[:1300])
        assert seam_of(runner) == (seam or None)
        state = check(runner, prompt)
        assert seam_of(runner) is None, "too short to be split"
        assert state.table.held == pages == (len(prompt) - window) // PAGE


@pytest.mark.parametrize("cut_at", [None, 512, 768, 1024, 1280])
def test_a_long_read_moves_its_base_and_can_still_be_cut(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer, cut_at: int | None
) -> None:
    monkeypatch.setattr(
        seam_module, "TailRead", functools.partial(TailRead, residual_bytes_max=256 * 192 * 4)
    )
    bases: list[int] = []

    def before_step(state: Sequence) -> None:
        if state.tail is None:
            return
        bases.append(state.tail._base.position)
        if cut_at == state.table.layers[3].offset:
            runner.workers[0]._current.link._channel.close()

    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE) as runner:
        check(runner, PROMPT[:1300], before_step=before_step)
    if cut_at is None:
        assert bases[-1] > 0, "the base did not move"
        assert bases == sorted(bases)
        assert len(set(bases)) > 1


def test_states_that_a_read_no_longer_needs_do_not_stay_on_the_link(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer
) -> None:
    """Asked for in the middle of the read, they are not there when its last chunk has been sent."""
    monkeypatch.setattr(
        seam_module, "TailRead", functools.partial(TailRead, residual_bytes_max=2 * 256 * 192 * 4)
    )
    go_on = threading.Event()
    coming: list[object] = []
    run, finish = Mirror.run, TailRead.finish

    def held_up(mirror: Mirror, model: Any, position: int, *arguments: Any) -> Any:
        assert position < 512 or go_on.wait(20)
        return run(mirror, model, position, *arguments)

    def finished(read: TailRead, *arguments: Any) -> Any:
        coming.append(read._coming_base)
        go_on.set()
        return finish(read, *arguments)

    monkeypatch.setattr(Mirror, "run", held_up)
    monkeypatch.setattr(TailRead, "finish", finished)
    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE) as runner:
        check(runner, PROMPT[:1025])
        assert coming != [None]
        connection = runner.workers[0].connection
        assert connection is not None
        until(lambda: not connection.link._expected)


def test_rows_that_a_worker_has_no_room_for_leave_no_replies_on_the_link() -> None:
    page_bytes = 2 * PAGE * tiny().model.geometry(PAGE).row_bytes
    with (
        serving(model=MODEL, memory_bytes=3 * page_bytes) as server,
        host(lambda: link_to(server), split_layer=SEAM, window_tokens=WIDE, sessions=1) as runner,
    ):
        check(runner, PROMPT[:500])
        check(runner, PROMPT[:1400])
        assert runner._seam is not None
        assert (runner._seam.reads.split, runner._seam.reads.whole) == (0, 1)
        assert (connection := runner.workers[0].connection) is not None
        assert not connection.link._expected


def test_a_chain_whose_second_worker_refuses_leaves_nothing_at_the_first() -> None:
    page_bytes = make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(PAGE))
    with (
        serving(model=MODEL) as first,
        serving(model=MODEL, memory_bytes=3 * page_bytes) as second,
        host(
            [lambda: link_to(first), lambda: link_to(second)],
            split_layer=SEAM,
            window_tokens=WIDE,
            sessions=1,
        ) as runner,
    ):
        check(runner, PROMPT[:500])
        state = check(runner, PROMPT[:1400])
        assert runner._seam is not None
        assert (runner._seam.reads.split, runner._seam.reads.whole) == (0, 1)
        assert first.store.used_bytes > 0, "rows had crossed"
        assert runner._seam.give_back(state.table, 0), "room is wanted for pages"
        assert first.store.used_bytes == 0


def test_only_a_worker_that_has_something_of_a_read_gives_it_back() -> None:
    with (
        serving(model=MODEL) as tail,
        serving() as pages_only,
        host(
            [lambda: link_to(tail), lambda: link_to(pages_only)],
            split_layer=SEAM,
            window_tokens=WIDE,
            sessions=1,
        ) as runner,
    ):
        assert (seam := runner._seam) is not None
        runner.warm_up()
        state = check(runner, PROMPT[:200])
        assert not seam.give_back(state.table, 0), "layers were loaded, and nothing was read there"
        state = check(runner, PROMPT[:1025])
        assert not seam.give_back(state.table, 1)
        assert tail.store.used_bytes > 0
        assert seam.give_back(state.table, 0)
        assert tail.store.used_bytes == 0
        assert not seam.give_back(state.table, 0), "twice"


def check_that_the_host_goes_on(runner: ModelRunner) -> None:
    link = runner.workers[0]._current.link
    check(runner, PROMPT[:1025])
    assert (runner.status().split_reads, runner.status().lost_reads) == (1, 1)
    assert "a worker sent" in str(link.failure), "a worker that answers wrongly is given up"


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows[:1],
        lambda rows: rows[:, :1],
        lambda rows: rows[:, :, :5],
        lambda rows: rows[..., :8],
        lambda rows: rows.astype(np.float16),
    ],
    ids=["layers", "heads", "rows", "head_dim", "dtype"],
)
def test_an_ack_whose_rows_were_not_asked_for_leaves_the_rest_to_the_host(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer, damage: Callable[[Array], Array]
) -> None:
    stacked = Tail._stacked_rows
    monkeypatch.setattr(Tail, "_stacked_rows", lambda *arguments: tuple(map(damage, stacked(*arguments))))
    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE) as runner:
        check_that_the_host_goes_on(runner)


@pytest.mark.parametrize("residual_ubatches", [1, 100])  # with one, states are asked for in the middle, too
@pytest.mark.parametrize(
    ("layer", "damage"),
    [
        (ATTENTION[-1], lambda k, v: (k[:, :5], v[:, :5])),
        (ATTENTION[-1], lambda k, v: (k, v[:, :, :8])),
        (SEAM, lambda conv, recurrent: (conv[:, :1], recurrent)),
        (SEAM, lambda conv, recurrent: (conv, recurrent.astype(np.float16))),
    ],
    ids=["rows", "v's head_dim", "conv", "recurrent's dtype"],
)
def test_a_state_of_another_shape_leaves_the_rest_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
    worker: WorkerServer,
    layer: int,
    damage: Callable[[Array, Array], tuple[Array, Array]],
    residual_ubatches: int,
) -> None:
    residual_bytes = residual_ubatches * 256 * 192 * 4
    monkeypatch.setattr(
        seam_module, "TailRead", functools.partial(TailRead, residual_bytes_max=residual_bytes)
    )
    left_at = Mirror.left_at

    def damaged(mirror: Mirror, at_layer: int, position: int) -> tuple[Array, Array]:
        first, second = left_at(mirror, at_layer, position)
        return damage(first, second) if at_layer == layer else (first, second)

    monkeypatch.setattr(Mirror, "left_at", damaged)
    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE) as runner:
        check_that_the_host_goes_on(runner)


# At seam 2, what the tail's first attention layer sees decides all that follows. At 4, its only one is the last layer.
@pytest.mark.parametrize("seam", [2, SEAM])
@pytest.mark.parametrize("lost_at", [256, 512, 768, 1024])
def test_a_worker_lost_with_either_half_of_a_step_costs_no_token(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer, tmp_path: Path, lost_at: int, seam: int
) -> None:
    push = TailRead.push
    steps: list[int] = []

    def lose(self: TailRead, position: int, *arguments: Any) -> None:
        steps.append(position)
        if position == lost_at:
            self.stages[0].connection.link.close()
        push(self, position, *arguments)

    monkeypatch.setattr(TailRead, "push", lose)
    with host(lambda: link_to(worker), split_layer=seam, window_tokens=128, spill_folder=tmp_path) as runner:
        check(runner, PROMPT[:1300])
    assert steps[-1] == lost_at


@pytest.mark.parametrize("residual_ubatches", [1, 100])
@pytest.mark.parametrize("page_tokens", [64, 100])
def test_a_following_read_past_the_window_that_loses_its_worker_goes_on_from_its_base(
    monkeypatch: pytest.MonkeyPatch,
    worker: WorkerServer,
    tmp_path: Path,
    page_tokens: int,
    residual_ubatches: int,
) -> None:
    """Its base lies among held pages, with pages of 100 in the middle of one."""
    monkeypatch.setattr(
        seam_module,
        "TailRead",
        functools.partial(TailRead, residual_bytes_max=residual_ubatches * 256 * 192 * 4),
    )
    prompt = (PROMPT + OTHER)[:2300]
    lost_at: list[tuple[int, int]] = []  # held positions, base
    with host(page_tokens=page_tokens, window_tokens=WIDE) as runner:
        expected = generate(runner, prompt, TOKENS)

    def before_step(state: Sequence) -> None:
        if state.tail is not None and state.tail._pushed >= 2048:
            lost_at.append((state.table.held * page_tokens, state.tail._base.position))
            runner.workers[0]._current.link._channel.close()

    with host(
        lambda: link_to(worker),
        page_tokens=page_tokens,
        split_layer=2,
        window_tokens=128,
        spill_folder=tmp_path,
        sessions=1,
    ) as runner:
        generate(runner, PROMPT[:700], TOKENS)
        tokens, logits, state = generate_with_state(runner, prompt, TOKENS, before_step=before_step)
        assert state.read_from == 512
        same((tokens, logits), expected)
    ((held, base),) = lost_at
    assert held > 512
    assert (base > 512) is (residual_ubatches == 1)


@pytest.mark.parametrize("memory_bytes", [1_000_000, 2_000_000])
def test_a_worker_that_runs_out_of_memory_past_the_window_costs_no_token(
    tmp_path: Path, memory_bytes: int
) -> None:
    with (
        serving(memory_bytes, model=MODEL) as server,
        host(
            lambda: link_to(server), split_layer=2, window_tokens=128, spill_folder=tmp_path, sessions=1
        ) as runner,
    ):
        check(runner, PROMPT[:1400])
        check(runner, PROMPT[:1400] + OTHER[:300])
