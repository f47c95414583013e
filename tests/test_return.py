"""A worker that was away: pages that left the host meanwhile go there when it is back, and no bit changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backburner.engine.sequence import Sequence
from backburner.errors import LinkClosed
from backburner.transport.link import Link
from backburner.transport.messages import AttendAhead, Message
from tests.crossing import of, watched
from tests.host import ATTENTION, generate_with_state, host, link_to, long_prompt, same, serving, until
from tests.split_support import MODEL, SEAM, TOKENS, alone

PROMPT = long_prompt() * 4


class Away:
    """Connects to a worker, but not while it is away."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self.away = False
        self._connect = connect

    def __call__(self) -> Link:
        if self.away:
            raise LinkClosed("away")
        return self._connect()


@pytest.mark.parametrize("seam", [0, SEAM])
def test_pages_that_left_the_host_while_the_worker_was_away_go_there_afterwards(
    seam: int, tmp_path: Path
) -> None:
    sent: list[Message] = []
    late: list[int] = []  # pages that the worker had in the order in which it got them
    with serving(model=MODEL) as server:
        connect = Away(lambda: watched(server, sent.append))
        with host(connect, split_layer=seam, spill_folder=tmp_path, sessions=1, window_tokens=64) as runner:
            (worker,) = runner.workers

            def leave_and_return(state: Sequence) -> None:
                tokens, held = state.table.layers[ATTENTION[0]].offset, state.held
                assert held is not None
                if tokens == 512 and not connect.away:
                    connect.away = True
                    worker._current.link.close()
                elif tokens == 1024 and connect.away:
                    assert held.held_on(0, state.table.held) == 0
                    connect.away = False
                    assert worker.await_return(10)
                    sent.clear()
                elif tokens > 1024:
                    (share,) = held._shares.values()
                    late.extend(
                        page for i, page in enumerate(share.pages) if page < max(share.pages[:i], default=0)
                    )
                    until(lambda: share.moves.bound == len(share.pages))

            first = PROMPT[:1290]
            tokens, logits, state = generate_with_state(runner, first, 16, before_step=leave_and_return)
            same((tokens[:TOKENS], logits[:TOKENS]), alone(tuple(first)))
            assert late, "behind pages that follow them"
            assert state.held is not None
            held = state.table.held
            assert state.held.held_on(0, held) == held == (1290 + 15 - 64) // 64
            partials = runner.status().spill_partials
            sent.clear()
            # An edit in the middle of what came late, then more.
            edited = [*first[:700], *(t ^ 1 for t in first[700:])]
            for text in (edited, edited + PROMPT[:300]):
                tokens, logits, _ = generate_with_state(runner, text, TOKENS)
                same((tokens, logits), alone(tuple(text)))
            assert runner.status().spill_partials == partials, "the worker has all of it"
            assert not of(sent, AttendAhead), "and in the order of its pages"


def test_the_order_in_which_pages_came_changes_no_bit(tmp_path: Path) -> None:
    """Away again and again, at each time of a conversation that is edited and goes on."""
    with serving() as one, serving() as two:
        connects = [Away(lambda: link_to(one)), Away(lambda: link_to(two))]
        with host(connects, spill_folder=tmp_path, sessions=1) as runner:
            steps = 0

            def come_and_go(state: Sequence) -> None:
                nonlocal steps
                steps += 1
                for n, (connect, worker) in enumerate(zip(connects, runner.workers, strict=True)):
                    if (steps + 2 * n) % 4 == 1:
                        connect.away = not connect.away
                        if connect.away:
                            worker._current.link.close()
                        else:
                            assert worker.await_return(10)

            for text in (
                PROMPT[:900],
                PROMPT[:1500],
                PROMPT[:1000] + [t ^ 1 for t in PROMPT[1000:1700]],
                PROMPT[:700],
                PROMPT[:2100],
            ):
                tokens, logits, _ = generate_with_state(runner, text, TOKENS, before_step=come_and_go)
                same((tokens, logits), alone(tuple(text)))
