"""Several workers for one conversation, its old pages and as a chain its tail: the bits are those of the host alone."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.sequence import Sequence
from backburner.kv.mover import PageMover
from backburner.model.hybrid import HybridModel
from backburner.model.load import load
from backburner.transport.clock import FLOOR_S
from backburner.transport.messages import (
    Attend,
    AttendAhead,
    FoldOnto,
    Message,
    PartialReply,
    PutRows,
    TailAck,
    TailChunk,
)
from backburner.worker.mirror import Mirror
from backburner.worker.session import AHEAD_MAX, Session
from backburner.worker.tail import Tail
from benchmarks.models import SMALL, write_small
from tests.crossing import of, watched
from tests.host import (
    ATTENTION,
    BEST_ENGINE,
    generate,
    generate_with_state,
    host,
    link_to,
    long_prompt,
    same,
    serving,
    tiny,
    until,
)
from tests.split_support import MODEL, PAGE, SEAM, TOKENS, WIDE, alone

PROMPT = long_prompt() * 8


def page_bytes() -> int:
    """Of a page over all layers."""
    return make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(PAGE)) * len(ATTENTION)


# -- old pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seam", [0, SEAM])
def test_two_workers_hold_pages_of_one_conversation(seam: int) -> None:
    sent: list[list[Message]] = [[], []]
    with serving(model=MODEL) as one, serving(model=MODEL) as two:
        connects = [lambda: watched(one, sent[0].append), lambda: watched(two, sent[1].append)]
        with host(connects, split_layer=seam, window_tokens=128) as runner:
            same(generate(runner, PROMPT[:1025], TOKENS), alone(tuple(PROMPT[:1025])))
            assert all(w.held_pages > 0 for w in runner.workers)
            assert runner.status().seam == (seam or None)
    assert of(sent[0], Attend)
    assert of(sent[1], AttendAhead), "its partials are folded onto the first one's"


def test_a_worker_that_got_pages_in_many_turns_is_asked_for_no_more_than_it_keeps() -> None:
    """Each turn's pages are dealt to both, so their runs alternate, and all but the first are attended to ahead."""
    sent: list[list[Message]] = [[], []]
    with (
        serving(model=MODEL) as one,
        serving(model=MODEL) as two,
        host(
            [lambda: watched(one, sent[0].append), lambda: watched(two, sent[1].append)],
            split_layer=0,
            window_tokens=128,
            sessions=1,
        ) as runner,
    ):
        connections = [worker.connection for worker in runner.workers]
        for length in (1025, 1425, 1825):
            generate(runner, PROMPT[:length], TOKENS)
        # Long enough for steps of two ubatches, whose questions are on their way at once.
        same(generate(runner, PROMPT[:2825], TOKENS), alone(tuple(PROMPT[:2825])))
        assert [worker.connection for worker in runner.workers] == connections, "none was lost on the way"
    for messages in sent:
        kept = most = 0
        for message in messages:
            kept += isinstance(message, AttendAhead) - isinstance(message, FoldOnto)
            most = max(most, kept)
        assert kept == 0
        assert 0 < most <= AHEAD_MAX


def test_a_fold_is_measured_and_waited_for_like_the_partials_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker keeps partials of 128 MiB; those of the other pages are made when the fold comes."""
    longer_s: list[float] = []
    told: list[str] = []  # of the second worker's link and mover
    fold_onto, be_patient = Session._fold_onto, PageMover.be_patient

    def slow(session: Session, request: FoldOnto) -> PartialReply:
        if longer_s:
            time.sleep(longer_s.pop())
        return fold_onto(session, request)

    def noted(mover: PageMover, seconds: float) -> None:
        if mover is runner.workers[1]._current.mover:
            told.append("patience")
        be_patient(mover, seconds)

    monkeypatch.setattr(Session, "_fold_onto", slow)
    monkeypatch.setattr(PageMover, "be_patient", noted)
    prompt = PROMPT[:700]
    with serving() as one, serving() as two:

        def posted(message: Message) -> None:
            if isinstance(message, AttendAhead | FoldOnto):
                told.append(type(message).__name__)

        connects = [lambda: link_to(one), lambda: watched(two, posted)]
        with host(connects, window_tokens=128) as runner:
            connections = [worker.connection for worker in runner.workers]

            def take_longer(state: Sequence) -> None:
                # The second is longer than a healthy worker's floor, but not than the first makes likely.
                if state.table.tokens in (700, 701):
                    longer_s.append(FLOOR_S * (0.3 if state.table.tokens == 700 else 1.5))

            tokens, logits, _ = generate_with_state(runner, prompt, TOKENS, before_step=take_longer)
            same((tokens, logits), alone(tuple(prompt)))
            assert not longer_s
            assert [worker.connection for worker in runner.workers] == connections
    assert told.count("FoldOnto") == told.count("AttendAhead") > 0
    assert told[::2] == ["patience"] * (len(told) // 2), "before each"


@pytest.mark.parametrize("spilled", [False, True])
def test_what_one_worker_refuses_goes_to_another(spilled: bool, tmp_path: Path) -> None:
    """Held pages are a prefix: one that nobody takes keeps all after it on the host, or with a spill on its disk."""
    prompt = PROMPT[:1537]
    edited = prompt[:1000] + [t ^ 1 for t in prompt[1000:]]
    with (
        serving() as one,
        serving() as two,
        host(
            [lambda: link_to(one), lambda: link_to(two)],
            window_tokens=128,
            host_tokens=1000,
            sessions=1,
            spill_folder=tmp_path if spilled else None,
        ) as runner,
    ):
        one.store.memory_bytes = 6 * page_bytes()  # less than it has promised, and than its part of the pages
        for text, held in ((prompt, 22), (edited, 22), (prompt[:1200], 16)):
            tokens, logits, state = generate_with_state(runner, text, TOKENS)
            same((tokens, logits), alone(tuple(text)))
            assert state.held is not None
            assert state.table.held == held
            assert [state.held.held_on(worker, held) for worker in (0, 1)] == [6, held - 6]


@pytest.mark.parametrize("spilled", [False, True])
def test_what_a_worker_has_not_taken_when_it_goes_away_goes_to_another(spilled: bool, tmp_path: Path) -> None:
    prompt = PROMPT[:2049]
    with (
        serving() as one,
        serving() as two,
        host(
            [lambda: link_to(one), lambda: link_to(two)],
            window_tokens=640,
            sessions=1,
            spill_folder=tmp_path if spilled else None,
        ) as runner,
    ):
        away = runner.workers[1]

        def lose(state: Sequence) -> None:
            if state.table.tokens == 1536:
                assert state.held is not None
                dealt = state.held._plan.index(1)
                assert state.table.held < dealt < len(state.held._keys), "the host still has pages of its"
                two.close()
                until(lambda: away.connection is None)

        tokens, logits, state = generate_with_state(runner, prompt, TOKENS, before_step=lose)
        same((tokens, logits), alone(tuple(prompt)))
        assert state.held is not None
        assert state.table.held == 22
        assert [state.held.held_on(worker, 22) for worker in (0, 1)] == [22, 0]


# -- a chain ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of twelve layers."""
    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "head_dim": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    }
    return write_small(tmp_path_factory.mktemp("twelve"), SMALL | shape)


def test_a_chain_of_two_workers_runs_the_tail(twelve: Path) -> None:
    model = load("twelve", twelve)
    first, second = PROMPT[:700], PROMPT[:1300]
    with host(model=model, folder=twelve, window_tokens=WIDE) as runner:
        expected = [generate(runner, prompt, TOKENS) for prompt in (first, second)]
    sent: list[list[Message]] = [[], []]
    options: dict[str, Any] = {"model": model, "folder": twelve, "split_layer": SEAM, "sessions": 1}
    with serving(model=("twelve", twelve)) as one, serving(model=("twelve", twelve)) as two:
        connects = [lambda: watched(one, sent[0].append), lambda: watched(two, sent[1].append)]
        for window in (WIDE, 128):
            until(lambda: one._serving is None and two._serving is None)
            with host(connects, window_tokens=window, **options) as runner:
                for prompt, answer in zip((first, second), expected, strict=True):
                    same(generate(runner, prompt, TOKENS), answer)
                    assert [w.tail_layers for w in runner.workers] == [(4, 8), (8, 12)]
        for messages in sent:
            chunks = of(messages, TailChunk)
            assert [c.position for c in chunks] == 2 * [0, 256, 512, 768, 1024]
            assert not of(messages, PutRows)

        def cut(state: Sequence) -> None:
            if state.tail is not None and state.table.layers[3].offset == 768:
                runner.workers[1]._current.link._channel.close()

        until(lambda: one._serving is None and two._serving is None)
        with host(connects, window_tokens=WIDE, **options) as runner:
            tokens, logits, _ = generate_with_state(runner, second, TOKENS, before_step=cut)
            same((tokens, logits), expected[1])


def test_a_first_stage_that_runs_out_of_memory_costs_the_second_nothing() -> None:
    """It refuses the last chunk, for whose states both are asked."""
    prompt = PROMPT[:1025]
    layer_bytes = page_bytes() // len(ATTENTION)
    with (
        serving((1024 // PAGE - 1) * layer_bytes, model=MODEL) as one,
        serving(model=MODEL) as two,
        host([lambda: link_to(one), lambda: link_to(two)], split_layer=SEAM, window_tokens=WIDE) as runner,
    ):
        connections = [worker.connection for worker in runner.workers]
        same(generate(runner, prompt, TOKENS), alone(tuple(prompt)))
        assert runner.status().lost_reads == 1
        assert [worker.connection for worker in runner.workers] == connections
        for connection in connections:
            assert connection is not None
            until(lambda link=connection.link: not link._expected)


def test_a_first_stage_whose_residual_was_not_asked_for_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not the second, which would run it."""
    run = Tail._run

    def damaged(*arguments: Any) -> TailAck:
        ack = run(*arguments)
        return ack if ack.residual is None else replace(ack, residual=ack.residual[:5])

    monkeypatch.setattr(Tail, "_run", damaged)
    prompt = PROMPT[:700]
    sent: list[Message] = []
    with (
        serving(model=MODEL) as one,
        serving(model=MODEL) as two,
        host(
            [lambda: link_to(one), lambda: watched(two, sent.append)], split_layer=SEAM, window_tokens=WIDE
        ) as runner,
    ):
        same(generate(runner, prompt, TOKENS), alone(tuple(prompt)))
        assert runner.status().lost_reads == 1
    assert not of(sent, TailChunk)
    assert "for a residual of shape (256, 192)" in caplog.text


def test_a_cancelled_chain_leaves_nothing_on_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage's acks come when nobody takes the second's any more."""
    go_on = threading.Event()
    run = Mirror.run

    def held_up(mirror: Mirror, model: HybridModel, *arguments: Any) -> mx.array:
        assert mirror.span.part.first > SEAM or go_on.wait(20)
        return run(mirror, model, *arguments)

    monkeypatch.setattr(Mirror, "run", held_up)
    sent: list[Message] = []
    with (
        serving(model=MODEL) as one,
        serving(model=MODEL) as two,
        host(
            [lambda: link_to(one), lambda: watched(two, sent.append)], split_layer=SEAM, window_tokens=WIDE
        ) as runner,
    ):
        state = runner.start(GenerationRequest("test", tuple(PROMPT[:1300]), 1))
        for start in (0, 256):
            runner.read(state, start, start + 256)
        first, second = state.tail._collectors
        runner.finish(state)
        second.join(10)
        go_on.set()
        first.join(10)
        assert not any(collector.is_alive() for collector in (first, second))
        assert not of(sent, TailChunk)
        for worker in runner.workers:
            assert worker.connection is not None
            until(lambda link=worker.connection.link: not link._expected)
