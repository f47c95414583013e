"""Split reads against the host alone: the same tokens and the same bits, wherever the layers ran."""

import itertools
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from backburner.config import SPLIT_MIN_TOKENS
from backburner.engine import seam as seam_module
from backburner.engine import stage as stage_module
from backburner.engine.request import GenerationRequest
from backburner.engine.seam import SeamChooser
from backburner.engine.sequence import Sequence
from backburner.kv.pages import PageTable, PendingAttention
from backburner.model.load import TINY, read_config
from backburner.transport import fields
from backburner.transport.messages import (
    Attend,
    Message,
    NamePages,
    PutPage,
    PutRows,
    PutState,
    TailChunk,
    TailOpen,
)
from backburner.worker.server import WorkerServer
from backburner.worker.tail import Tail
from benchmarks.models import write_small
from tests import split_support
from tests.crossing import of, watched
from tests.host import (
    ATTENTION,
    LAYERS,
    generate_with_state,
    host,
    link_to,
    same,
    serving,
)
from tests.split_support import MODEL, OTHER, PAGE, PROMPT, SEAM, TOKENS, WIDE, alone, check, note_of, seam_of

shared = split_support.shared
worker = split_support.worker


# -- where and how long -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seam", range(1, LAYERS))
def test_a_read_split_at_any_seam_gives_the_bits_of_the_host_alone(worker: WorkerServer, seam: int) -> None:
    with host(lambda: link_to(worker), split_layer=seam, window_tokens=WIDE) as runner:
        check(runner, PROMPT[:789])
        assert seam_of(runner) == seam
        assert runner.workers[0].tail_layers == (seam, LAYERS)


@pytest.mark.parametrize(
    "length", [513, 575, 576, 577, 600, 767, 768, 769, 831, 832, 833, 1023, 1024, 1025, 1087, 1089]
)
def test_a_split_read_of_any_length_gives_the_bits_of_the_host_alone(
    worker: WorkerServer, length: int
) -> None:
    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE) as runner:
        check(runner, PROMPT[:length])
        assert seam_of(runner) == SEAM


def test_a_short_read_stays_on_the_host(worker: WorkerServer) -> None:
    sent: list[Message] = []
    with host(lambda: watched(worker, sent.append), split_layer=SEAM, window_tokens=WIDE) as runner:
        check(runner, PROMPT[:SPLIT_MIN_TOKENS])
        assert seam_of(runner) is None
    assert not of(sent, TailOpen)


def test_a_read_of_one_ubatch_stays_on_the_host_however_short_reads_may_be_split(
    worker: WorkerServer,
) -> None:
    with host(
        lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE, split_tokens_min=100, sessions=1
    ) as runner:
        for length, start, seam in ((200, 0, None), (300, 0, SEAM), (500, 256, None), (700, 256, SEAM)):
            assert check(runner, PROMPT[:length]).read_from == start
            assert seam_of(runner) == seam


# -- several reads of one conversation --------------------------------------------------------------------------------


def test_following_reads_of_a_conversation_push_nothing(worker: WorkerServer) -> None:
    sent: list[Message] = []
    conversation = PROMPT[:700]
    with host(
        lambda: watched(worker, sent.append), split_layer=SEAM, window_tokens=WIDE, sessions=1
    ) as runner:
        for n in range(3):
            state = check(runner, conversation)
            assert seam_of(runner) == SEAM
            assert state.read_from == (0, 512, 1280)[n]
            # The same conversation goes on: what was answered, then something new.
            conversation = [*state.tokens[:-1], *OTHER[: 700 if n == 0 else 600]]
    assert len(of(sent, TailOpen)) == 3
    assert not of(sent, PutRows)
    assert not of(sent, PutState)
    chunks = of(sent, TailChunk)
    assert [c.position for c in chunks] == list(range(0, chunks[-1].position + 1, 256)), "nothing twice"


def test_of_two_conversations_with_one_beginning_each_finds_its_own_tail(worker: WorkerServer) -> None:
    sent: list[Message] = []
    with host(
        lambda: watched(worker, sent.append), split_layer=SEAM, window_tokens=WIDE, sessions=2
    ) as runner:
        long = check(runner, PROMPT[:1300])
        short = check(runner, PROMPT[:700])
        assert (long.read_from, short.read_from) == (0, 0), "the long one is kept for its own next request"
        sent.clear()
        for state, other in ((short, PROMPT[:1200]), (long, PROMPT[:1300] + OTHER[:600])):
            assert check(runner, other) is state
            assert seam_of(runner) == SEAM
    assert not of(sent, PutRows)
    assert not of(sent, PutState)


def test_after_an_edit_the_rows_are_cut_and_the_states_are_pushed(worker: WorkerServer) -> None:
    sent: list[Message] = []
    with host(
        lambda: watched(worker, sent.append), split_layer=SEAM, window_tokens=WIDE, sessions=1
    ) as runner:
        check(runner, PROMPT[:900])
        check(runner, PROMPT[:1400])
        sent.clear()
        state = check(runner, PROMPT[:1000] + OTHER[1000:1400])
        assert state.read_from == 768
        assert seam_of(runner) == SEAM
    assert not of(sent, PutRows), "the worker cut its own"
    assert [(s.layer, s.position) for s in of(sent, PutState)] == [
        (layer, 768) for layer in range(SEAM, LAYERS) if layer not in ATTENTION
    ]


def test_a_worker_that_was_started_anew_gets_rows_and_states_back() -> None:
    sent: list[Message] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(model=MODEL)) for _ in range(2)]
        connects = iter(servers)
        runner = stack.enter_context(
            host(
                lambda: watched(next(connects, servers[-1]), sent.append),
                split_layer=SEAM,
                window_tokens=WIDE,
                sessions=1,
            )
        )
        check(runner, PROMPT[:700])
        connection = runner.workers[0].connection
        assert connection is not None
        connection.link.close()
        assert runner.workers[0].await_return(5.0)
        sent.clear()
        state = check(runner, PROMPT[:1300])
        assert state.read_from == 512
        assert seam_of(runner) == SEAM
    assert sum(r.k.shape[1] for r in of(sent, PutRows)) == 512 * len(ATTENTION[1:])
    assert {r.layer for r in of(sent, PutRows)} == set(ATTENTION[1:])
    assert {s.layer for s in of(sent, PutState)} == set(range(SEAM, LAYERS)) - set(ATTENTION)


def test_a_read_that_goes_on_beyond_the_names_of_a_tail_stays_on_the_host(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer
) -> None:
    for module, name in ((fields, "ITEMS_MAX"), (stage_module, "KEYS_MAX"), (seam_module, "KEYS_MAX")):
        monkeypatch.setattr(module, name, 12)  # 1,024 ubatches would take minutes
    long = (PROMPT + OTHER) * 2
    with host(lambda: link_to(worker), split_layer=SEAM, window_tokens=WIDE, sessions=1) as runner:
        for length, start, seam in ((3200, 0, SEAM), (3900, 12 * 256, SEAM), (4500, 15 * 256, None)):
            assert check(runner, long[:length]).read_from == start
            assert seam_of(runner) == seam
        assert "beyond 3,072 tokens" in note_of(runner)


# -- past the window --------------------------------------------------------------------------------------------------


def test_pages_that_the_tail_made_are_born_held() -> None:
    sent: list[Message] = []
    prompt = PROMPT[:1025]
    with (
        serving(model=MODEL) as server,
        host(lambda: watched(server, sent.append), split_layer=SEAM, window_tokens=128) as runner,
    ):
        state = check(runner, prompt)
        keys = list(state.table.keys)
        assert seam_of(runner) == SEAM
        assert state.table.held >= 12, "the test must really go past the window"
    made = set(keys[: 1024 // PAGE])
    assert of(sent, NamePages)
    assert {p.layer for p in of(sent, PutPage) if p.key in made} == {3}


@pytest.mark.parametrize("end", ["edited", "cancelled"])
def test_rows_that_an_edit_replaced_are_not_named_for_the_new_ones(end: str) -> None:
    """Its reads are too short to be split, so the tail still has what it computed for the tokens before."""
    sent: list[Message] = []
    edited = PROMPT[:780] + OTHER[780:1500]
    with (
        serving(model=MODEL) as server,
        host(lambda: watched(server, sent.append), split_layer=SEAM, window_tokens=640, sessions=1) as runner,
    ):
        check(runner, PROMPT[:900])
        if end == "edited":
            check(runner, PROMPT[:1400])
        else:
            state = runner.start(GenerationRequest("cancelled", tuple(PROMPT[:1400]), 1))
            runner.prefill(state, 768, 1024)
            runner.finish(state)
        for length in (1270, 1500):
            state = check(runner, edited[:length])
            assert state.read_from in (768, 1024)
            assert seam_of(runner) is None
        assert state.table.held > 768 // PAGE, "the test must really use new pages at the worker"
    assert {len(n.keys) for n in of(sent, NamePages)} == set(range(1, 768 // PAGE + 1))


@pytest.mark.parametrize("seam", [0, SEAM])
def test_the_second_half_asks_before_the_first_computes(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer, seam: int
) -> None:
    events: list[tuple[str, int, int]] = []  # what, layer, queries
    tables: list[PageTable] = []  # the host's; the worker's tail has one, too

    def posted(message: Message) -> None:
        if isinstance(message, Attend):
            events.append(("ask", message.layer, message.q.shape[1]))

    result = PendingAttention.result

    def computed(self: PendingAttention) -> Any:
        if self._table in tables:
            events.append(("compute", -1, self._q.shape[1]))
        return result(self)

    monkeypatch.setattr(PendingAttention, "result", computed)

    def before_step(state: Sequence) -> None:
        tables.append(state.table)
        events.append(("step", state.table.tokens, state.table.held))

    # Long enough: rows of the tail come some ubatches late, and pages are held only then.
    prompt = (PROMPT * 3)[:3329]
    expected = alone(tuple(prompt))
    with host(lambda: watched(worker, posted), split_layer=seam, window_tokens=128) as runner:
        tokens, logits, _ = generate_with_state(runner, prompt, TOKENS, before_step=before_step)
    same((tokens, logits), expected)
    steps = [i for i, e in enumerate(events) if e[0] == "step"]
    halves = [events[a + 1 : b] for a, b in itertools.pairwise(steps)]
    two = [group for group in halves if sum(e == ("ask", 3, 256) for e in group) == 2]
    assert two, "no step had two halves"
    for group in two:
        what = [kind for kind, _, _ in group]
        if seam:  # one attention layer in the head
            assert what == ["ask", "ask", "compute", "compute"]
        else:
            between = (len(ATTENTION) - 1) * ["compute", "ask", "compute", "ask"]
            assert what == ["ask", "ask", *between, "compute", "compute"]


# -- who decides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("worker_us", "expected"), [(1000.0, 8), (200.0, 4), (3000.0, None)])
def test_auto_takes_the_seam_that_measured_speeds_say(
    monkeypatch: pytest.MonkeyPatch, worker: WorkerServer, worker_us: float, expected: int | None
) -> None:
    asked: list[seam_module.Speeds] = []
    best = seam_module.best_seam

    def spy(speeds: seam_module.Speeds, cycle: int, current: int | None = None) -> int | None:
        asked.append(speeds)
        return best(speeds, cycle, current)

    monkeypatch.setattr(seam_module, "best_seam", spy)
    monkeypatch.setattr(SeamChooser, "observe_host", lambda self, layers, seconds: None)
    monkeypatch.setattr(Tail, "_measure", lambda *_: worker_us)
    with host(lambda: link_to(worker), split_layer=None, window_tokens=WIDE) as runner:
        assert runner._seam is not None
        runner._seam._host_layer_us = 1000.0
        check(runner, PROMPT[:600])
        assert seam_of(runner) == expected
        assert (note_of(runner) == "") is (expected is not None)
        assert expected or "would not pay" in note_of(runner)
    assert (asked[-1].layers, asked[-1].host_layer_us, asked[-1].worker_layer_us) == (
        LAYERS,
        1000.0,
        worker_us,
    )
    assert asked[-1].link_us > 0


def test_auto_knows_the_hosts_speed_after_warming_up(worker: WorkerServer) -> None:
    with host(lambda: link_to(worker), split_layer=None, window_tokens=WIDE) as runner:
        runner.warm_up()
        assert runner._seam is not None
        assert runner._seam._host_layer_us
        check(runner, PROMPT[:600])
        assert seam_of(runner) in (4, 8) or "would not pay" in note_of(runner)


def test_a_worker_without_a_model_leaves_reads_to_the_host() -> None:
    with (
        serving() as server,
        host(lambda: link_to(server), split_layer=None, window_tokens=WIDE) as runner,
    ):
        check(runner, PROMPT[:600])
        assert seam_of(runner) is None
        assert "has no model" in note_of(runner)


def test_a_worker_with_other_weights_leaves_reads_to_the_host(tmp_path: Path) -> None:
    config = read_config(TINY)
    other = write_small(tmp_path / "other", json.loads(json.dumps(config)), seed=7)
    with (
        serving(model=("other", other)) as server,
        host(lambda: link_to(server), split_layer=SEAM, window_tokens=WIDE) as runner,
    ):
        for length in (600, 700):
            check(runner, PROMPT[:length])
            assert seam_of(runner) is None
        assert "give both the same --model" in note_of(runner)
