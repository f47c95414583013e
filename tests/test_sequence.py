"""A sequence's way back: checkpoints, cuts in the middle of pages, and the names of what was read."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.sequence import Checkpoint, Checkpoints, Sequence, common_prefix
from backburner.errors import WorkerLost
from tests.host import NOTES, chat, host, link_to, serving

PROMPT = chat("What is the code of the blue gate?", "Notes. " + NOTES * 2)[:600]
LAST_START = 512  # of its last ubatch
WINDOW = 128

limits = st.integers(1, 6)


@given(limits, st.lists(st.integers(1, 60), max_size=40))
def test_checkpoints_keep_the_newest_and_their_limit(limit: int, positions: list[int]) -> None:
    kept = Checkpoints(limit)
    for position in positions:
        earlier = [p for p in kept.positions if p < position]
        kept.add(Checkpoint(position, {}))
        assert kept.positions[-1] == position, "the newest"
        assert set(kept.positions[:-1]) <= set(earlier), "what lay after it, or at it, is another history's"
        assert len(kept) == min(limit, len(earlier) + 1)
        assert list(kept.positions) == sorted(set(kept.positions))


@given(limits, st.lists(st.integers(1, 60), max_size=20), st.integers(0, 61))
def test_the_last_checkpoint_is_the_newest_at_or_before_a_position(
    limit: int, positions: list[int], position: int
) -> None:
    kept = Checkpoints(limit)
    for p in positions:
        kept.add(Checkpoint(p, {}))
    found = kept.last(position)
    assert (found.position if found else None) == max(
        (p for p in kept.positions if p <= position), default=None
    )
    kept.forget_after(position)
    assert all(p <= position for p in kept.positions)
    assert kept.last(10**9) == found


@given(st.integers(2, 6), st.integers(1, 80))
def test_checkpoints_of_a_long_read_leave_no_part_of_it_far_from_one(limit: int, count: int) -> None:
    kept = Checkpoints(limit)
    for i in range(1, count + 1):
        kept.add(Checkpoint(i, {}))
    edges = [0, *kept.positions]
    widest = max(b - a for a, b in itertools.pairwise(edges))
    assert widest <= max(1, 2 * count / limit)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20, unique=True), st.integers(2, 6), st.integers(1, 30)
)
def test_the_checkpoint_before_a_turn_stays_while_the_turn_is_read(
    earlier: list[int], limit: int, ubatches: int
) -> None:
    kept = Checkpoints(limit)
    for position in sorted(earlier):
        kept.add(Checkpoint(position, {}))
    turn = kept.newest
    for i in range(ubatches):
        kept.add(Checkpoint(turn + 1 + i, {}), turn)
        assert turn in kept.positions


@given(st.lists(st.integers(0, 2), max_size=40), st.data())
def test_the_common_prefix_is_what_a_loop_finds(a: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(a)))
    b = a[:cut] + data.draw(st.lists(st.integers(0, 2), max_size=10))
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == common_prefix(b, a) == naive


def row(logits: mx.array | None) -> np.ndarray:
    assert logits is not None
    return np.array(logits.astype(mx.float32))


def started(runner: ModelRunner, prompt: list[int] = PROMPT) -> Sequence:
    return runner.start(GenerationRequest("test", tuple(prompt), 8))


def go_on(runner: ModelRunner, state: Sequence, start: int) -> list[np.ndarray]:
    """Reads the rest of the prompt and writes three tokens: the logits of each."""
    found = [row(runner.read(state, start, len(PROMPT)))]
    for _ in range(3):
        state.tokens.append(int(found[-1].argmax()))
        found.append(row(runner.run_token(state)))
    return found


@contextmanager
def placed(where: str, page_tokens: int, folder: Path) -> Iterator[ModelRunner]:
    """A host alone, or with a worker that gets old pages, with and without a spill."""
    with ExitStack() as stack:
        connect = None
        if where != "alone":
            server = stack.enter_context(serving())
            connect = lambda: link_to(server)  # noqa: E731
        yield stack.enter_context(
            host(
                connect,
                page_tokens=page_tokens,
                window_tokens=WINDOW,
                spill_folder=folder if "spill" in where else None,
            )
        )


@pytest.mark.parametrize("page_tokens", [64, 100])
@pytest.mark.parametrize("where", ["alone", "held", "held and spilled"])
def test_going_back_to_any_position_gives_the_bits_of_a_fresh_read(
    where: str, page_tokens: int, tmp_path: Path
) -> None:
    size = page_tokens
    cuts = [1, size - 1, size, size + 1, 255, 256, 257, 4 * size - 1, 4 * size, 4 * size + 1, LAST_START]
    # A prompt for each: these reads are not in whole ubatches, so that one must not find the pages of another.
    prompts = {cut: [PROMPT[0], cut, *PROMPT[2:]] for cut in cuts}
    fresh: dict[int, list[np.ndarray]] = {}
    with host(page_tokens=page_tokens) as runner:
        for cut in cuts:
            state = started(runner, prompts[cut])
            runner.read(state, 0, cut)
            fresh[cut] = go_on(runner, state, cut)
    with placed(where, page_tokens, tmp_path) as runner:
        for cut in cuts:
            state = started(runner, prompts[cut])
            runner.read(state, 0, cut)
            state.keep(cut)
            go_on(runner, state, cut)
            assert (state.table.held > 3) is (where != "alone"), "the test must really use held pages"
            # The read has made a checkpoint at its last ubatch; before it, there is ours.
            assert state.rewind(min(cut + 20, LAST_START)) in (cut, LAST_START)
            assert state.rewind(cut) == cut
            assert state.table.tokens == cut
            assert state.table.held <= cut // size
            del state.tokens[len(PROMPT) :]
            again = go_on(runner, state, cut)
            assert all(np.array_equal(a, b) for a, b in zip(again, fresh[cut], strict=True)), f"cut at {cut}"
            runner.finish(state)


@pytest.mark.parametrize("spilled", [True, False])
def test_going_back_into_a_page_that_is_away_needs_its_worker_or_the_spill(
    spilled: bool, tmp_path: Path
) -> None:
    with host(page_tokens=100) as runner:
        state = started(runner)
        runner.read(state, 0, 257)
        fresh = go_on(runner, state, 257)
    with placed("held and spilled" if spilled else "held", 100, tmp_path) as runner:
        state = started(runner)
        runner.read(state, 0, 257)
        state.keep(257)
        go_on(runner, state, 257)
        assert state.table.held > 3
        connection = runner.workers[0].connection
        assert connection is not None
        connection.link.close()
        if not spilled:
            with pytest.raises(WorkerLost):
                state.rewind(300)
            return
        assert state.rewind(300) == 257
        del state.tokens[len(PROMPT) :]
        again = go_on(runner, state, 257)
    assert all(np.array_equal(a, b) for a, b in zip(again, fresh, strict=True))


def test_without_a_checkpoint_the_way_back_leads_to_the_beginning() -> None:
    with host() as runner:
        state = started(runner)
        first = go_on(runner, state, 0)
        assert state.checkpoints.positions == (LAST_START,)
        assert state.rewind(LAST_START - 1) == 0
        assert state.table.tokens == 0
        assert state.checkpoints.positions == ()
        del state.tokens[len(PROMPT) :]
        again = go_on(runner, state, 0)
    assert all(np.array_equal(a, b) for a, b in zip(again, first, strict=True))


def test_ubatches_are_named_by_all_that_was_read_up_to_their_end() -> None:
    edited = [*PROMPT[:300], PROMPT[300] ^ 1, *PROMPT[301:]]
    with host() as runner:
        state, same, other = started(runner), started(runner), started(runner, edited)
        assert state.name_ubatches(UBATCH_TOKENS - 1) == []
        first = list(state.name_ubatches(UBATCH_TOKENS))
        names = list(state.name_ubatches(len(PROMPT)))
        assert len(names) == len(set(names)) == 2
        assert names[:1] == first, "a name does not change when more is read"
        assert state.name_ubatches(UBATCH_TOKENS) == first
        assert list(same.name_ubatches(len(PROMPT))) == names
        changed = list(other.name_ubatches(len(PROMPT)))
        assert changed[0] == names[0]
        assert changed[1] != names[1]

        runner.read(state, 0, len(PROMPT))
        assert state.rewind(len(PROMPT)) == LAST_START
        assert state.ubatch_keys == names
        state.rewind(1)
        assert state.ubatch_keys == []
        state.tokens = edited
        assert list(state.name_ubatches(len(PROMPT))) == changed
