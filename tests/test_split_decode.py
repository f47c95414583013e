"""Split decode: a host that has the first layers alone writes what one that has them all would write."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from backburner.attention.select import make_engine
from backburner.engine import split_decode, stage
from backburner.engine.request import GenerationRequest, SamplingParams
from backburner.engine.split_decode import SplitDecodeRunner
from backburner.engine.worker_link import WorkerLink
from backburner.errors import RemoteError, WorkerBusy, WorkerLost
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.load import TINY, LoadedModel, Part, load, read_config
from backburner.transport import fields
from backburner.transport.link import Link
from backburner.transport.messages import Message, TailAck, TailChunk
from backburner.worker.server import WorkerServer
from backburner.worker.tail import Tail
from benchmarks.answer import answer_tokens
from tests import split_support
from tests.crossing import of, watched
from tests.host import (
    BEST_ENGINE,
    LAYERS,
    generate_with_state,
    host,
    link_to,
    long_prompt,
    same,
    serving,
    tiny,
    tokenizer,
)
from tests.processes import ask, serve, worker
from tests.split_support import MODEL, PAGE, SEAM, alone

PROMPT = (long_prompt() * 4)[:1400]
TOKENS = 8
STEPS = 6 + TOKENS - 1  # ubatches of the prompt, the last of which gives the first token


shared = split_support.shared
server = split_support.worker


@lru_cache
def head() -> LoadedModel:
    return load("tiny", TINY, part=Part(0, SEAM, False))


@contextmanager
def split(connect: Callable[[], Link], host_tokens: int | None = None) -> Iterator[SplitDecodeRunner]:
    model, engine, config = head().model, make_engine(BEST_ENGINE), read_config(TINY)
    geometry = model.geometry(PAGE)
    link = WorkerLink(connect, "test", engine, geometry, model.attention_layers, model.fingerprint)
    runner = SplitDecodeRunner(
        head(),
        tokenizer(),
        engine,
        geometry,
        65_536,
        link,
        LAYERS,
        lambda first, stop: layers_fingerprint(TINY, config, first, stop, True),
        host_tokens=host_tokens,
    )
    try:
        yield runner
    finally:
        runner.close()


def write(
    runner: SplitDecodeRunner,
    prompt: list[int],
    count: int = TOKENS,
    before_step: Callable[[int], None] = lambda number: None,
) -> tuple[list[int], list[np.ndarray], int]:
    """Greedy tokens, the logits that each was chosen from, and where the read began."""
    number = itertools.count(1)
    tokens, logits, state = generate_with_state(runner, prompt, count, lambda _: before_step(next(number)))
    return tokens, logits, runner.read_from(state)


def check(runner: SplitDecodeRunner, prompt: list[int], **options: Callable[[int], None]) -> int:
    tokens, logits, began = write(runner, prompt, **options)
    same((tokens, logits), alone(tuple(prompt), TOKENS))
    return began


@pytest.fixture
def all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_decode, "logits_needed", lambda request: 0)


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 513, 1400])
def test_logits_are_the_bits_of_a_host_that_has_all_layers(
    server: WorkerServer, all_logits: None, length: int
) -> None:
    with split(lambda: link_to(server)) as runner:
        check(runner, PROMPT[:length])


def through(runner: Any, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Tokens as the engine would get them, sampled by the runner."""
    state = runner.start(GenerationRequest("test", tuple(prompt), TOKENS, sampling))
    tokens = list(itertools.islice(answer_tokens(runner, state, len(prompt)), TOKENS))
    runner.finish(state)
    return tokens


@pytest.mark.parametrize(
    ("sampling", "top"),
    [
        (SamplingParams(temperature=0.0), 1),
        (SamplingParams(temperature=0.8, top_k=5, seed=7), 5),
        (SamplingParams(temperature=1.5, top_k=20, min_p=0.01, seed=7), 20),
        (SamplingParams(temperature=1.5, top_p=0.7, top_k=20, seed=7), 20),
        (SamplingParams(temperature=1.5, top_p=0.7, seed=7), 0),
        (SamplingParams(presence_penalty=1.0), 0),
        (SamplingParams(temperature=0.8, seed=7), 0),
    ],
    ids=["greedy", "top-k", "top-k and min-p", "top-p of top-k", "top-p", "penalty", "all"],
)
def test_tokens_are_those_of_a_host_that_has_all_layers(
    server: WorkerServer, sampling: SamplingParams, top: int
) -> None:
    sent: list[Message] = []
    prompt = PROMPT[:600]
    with host(window_tokens=100_000) as runner:
        expected = through(runner, prompt, sampling)
    with split(lambda: watched(server, sent.append)) as runner:
        assert through(runner, prompt, sampling) == expected
    asked = [c.top for c in of(sent, TailChunk)]
    assert asked == [None, None, *[top] * TOKENS], "what crosses is what sampling needs"


GREEDY, ALL = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=7)  # one logit, and all


@pytest.mark.parametrize(
    ("sampling", "damage"),
    [
        (GREEDY, lambda ack: replace(ack, ids=ack.ids + head().model.vocab_size)),
        (GREEDY, lambda ack: replace(ack, ids=-1 - ack.ids)),
        (GREEDY, lambda ack: replace(ack, logits=ack.logits.repeat(2), ids=ack.ids.repeat(2))),
        (GREEDY, lambda ack: replace(ack, ids=None)),
        (GREEDY, lambda ack: replace(ack, logits=None, ids=None)),
        (ALL, lambda ack: replace(ack, logits=ack.logits[:-1])),
        (ALL, lambda ack: replace(ack, logits=ack.logits.astype(np.float16))),
    ],
    ids=["ids beyond", "ids below 0", "too many", "no ids", "none", "too few", "dtype"],
)
def test_logits_that_were_not_asked_for_cost_only_time(
    monkeypatch: pytest.MonkeyPatch,
    server: WorkerServer,
    sampling: SamplingParams,
    damage: Callable[[TailAck], TailAck],
) -> None:
    prompt = PROMPT[:600]
    with host(window_tokens=100_000) as runner:
        expected = through(runner, prompt, sampling)
    run, acks = Tail._run, itertools.count(1)

    def damaged(*arguments: Any) -> TailAck:
        ack = run(*arguments)
        return damage(ack) if ack.logits is not None and next(acks) == 4 else ack

    monkeypatch.setattr(Tail, "_run", damaged)
    with split(lambda: link_to(server)) as runner:
        assert through(runner, prompt, sampling) == expected
        assert runner.worker.reconnects == 1


def test_a_following_read_goes_on_where_the_last_one_stood(server: WorkerServer, all_logits: None) -> None:
    with split(lambda: link_to(server)) as runner:
        assert check(runner, PROMPT[:700]) == 0
        assert check(runner, PROMPT[:1400]) == 512
        assert check(runner, PROMPT[:1400]) == 1280


def test_beyond_the_names_of_a_tail_it_goes_on_from_the_last_checkpoint_before(
    monkeypatch: pytest.MonkeyPatch, server: WorkerServer, all_logits: None
) -> None:
    for module, name in ((fields, "ITEMS_MAX"), (stage, "KEYS_MAX")):
        monkeypatch.setattr(module, name, 12)  # 1,024 ubatches would take minutes
    long = PROMPT * 4
    with split(lambda: link_to(server)) as runner:
        assert check(runner, long[:3200]) == 0
        assert check(runner, long[:3900]) == 12 * 256
        assert check(runner, long[:4500]) == 12 * 256


def test_an_edit_reads_again_from_the_last_checkpoint(server: WorkerServer, all_logits: None) -> None:
    sent: list[Message] = []
    with split(lambda: watched(server, sent.append)) as runner:
        assert check(runner, PROMPT[:900]) == 0
        assert check(runner, PROMPT[:1400]) == 768
        sent.clear()
        edited = PROMPT[:1000] + [t ^ 1 for t in PROMPT[1000:1300]]
        assert check(runner, edited) == 768
    assert of(sent, TailChunk)[0].position == 768


def test_kept_conversations_give_way_when_the_hosts_memory_is_short(
    server: WorkerServer, all_logits: None
) -> None:
    one, other = PROMPT[:600], [t ^ 1 for t in PROMPT[:600]]
    with split(lambda: link_to(server), host_tokens=1000) as runner:
        assert check(runner, one) == 0
        assert check(runner, one) == 512
        (kept,) = runner.sessions
        assert check(runner, other) == 0  # 600 and 600 do not fit
        assert len(runner.sessions) == 1
        assert kept.sequence.table.tokens == 0, "its pages are free, whoever still knows it"
        assert check(runner, other) == 512
        assert check(runner, one) == 0


def test_a_cancelled_read_is_gone_on_with(server: WorkerServer, all_logits: None) -> None:
    with split(lambda: link_to(server)) as runner:
        check(runner, PROMPT[:700])
        state = runner.start(GenerationRequest("test", tuple(PROMPT), TOKENS))
        runner.read(state, 512, 768)
        runner.finish(state)
        check(runner, PROMPT)


@pytest.mark.parametrize("step", range(1, 16))
def test_a_link_cut_before_any_step_costs_only_time(
    server: WorkerServer, all_logits: None, step: int
) -> None:
    def before_step(number: int) -> None:
        if number == step:
            runner.worker._current.link._channel.close()

    with split(lambda: link_to(server)) as runner:
        check(runner, PROMPT, before_step=before_step)
        assert runner.worker.reconnects == (step <= STEPS)


@pytest.mark.parametrize("step", [2, 5, 9])
def test_a_worker_that_was_started_anew_reads_what_it_lost(all_logits: None, step: int) -> None:
    with serving(model=MODEL) as first, serving(model=MODEL) as second:
        servers = [first]

        def before_step(number: int) -> None:
            if number == step:
                servers[0] = second
                runner.worker._current.link._channel.close()

        with split(lambda: link_to(servers[0])) as runner:
            check(runner, PROMPT, before_step=before_step)
            assert runner.worker.reconnects == 1


def test_a_worker_that_is_busy_at_first_is_waited_for(server: WorkerServer, all_logits: None) -> None:
    """Its session with the link that broke may not have ended when it is tried again."""
    refusals = 0

    def connect() -> Link:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise WorkerBusy("this worker already serves another host")
        return link_to(server)

    def before_step(number: int) -> None:
        nonlocal refusals
        if number == 5:
            refusals = 3
            runner.worker._current.link._channel.close()

    with split(connect) as runner:
        check(runner, PROMPT, before_step=before_step)
        assert runner.worker.reconnects == 1
    assert refusals == 0


def test_a_tail_that_stands_elsewhere_after_a_chunk_is_not_believed(
    server: WorkerServer, all_logits: None
) -> None:
    wrong = 1

    class Elsewhere(Link):
        def wait(self, tag: int, timeout_s: float | None = None) -> Message:
            nonlocal wrong
            reply = super().wait(tag, timeout_s)
            if isinstance(reply, TailAck) and reply.logits is not None and wrong:
                wrong -= 1
                return replace(reply, position=reply.position + 1)
            return reply

    def connect() -> Link:
        link = link_to(server)
        return Elsewhere(link._channel, link.timeout_s)

    with split(connect) as runner:
        check(runner, PROMPT)
        assert runner.worker.reconnects == 1


def test_a_worker_that_stays_away_ends_the_request_with_a_named_error(
    monkeypatch: pytest.MonkeyPatch, all_logits: None
) -> None:
    monkeypatch.setattr(split_decode, "RETURN_DEADLINE_S", 0.5)
    with serving(model=MODEL) as server:
        servers = [server]
        with split(lambda: link_to(servers[0], 1.0)) as runner:

            def before_step(number: int) -> None:
                if number == 8:
                    server.close()
                    runner.worker._current.link._channel.close()

            with pytest.raises(
                WorkerLost, match=r"is away: .*there\. Send the request again when it is back\.$"
            ):
                write(runner, PROMPT, before_step=before_step)
            with pytest.raises(WorkerLost):
                runner.start(GenerationRequest("test", tuple(PROMPT), 1))
            assert len(runner.sessions) == 0, "it is in no state to go on from"
            with serving(model=MODEL) as servers[0]:
                assert runner.worker.await_return(5.0)
                check(runner, PROMPT)


def test_a_request_that_a_worker_has_no_room_for_leaves_no_replies_on_the_link(all_logits: None) -> None:
    page_bytes = make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(PAGE))
    with (
        serving(model=MODEL, memory_bytes=8 * page_bytes) as server,
        split(lambda: link_to(server)) as runner,
    ):
        with pytest.raises(RemoteError):
            write(runner, PROMPT)
        assert (connection := runner.worker.connection) is not None
        assert not connection.link._expected


def test_chunks_are_answered_in_order_and_only_the_last_with_logits(
    server: WorkerServer, all_logits: None
) -> None:
    acks: list[TailAck] = []

    class Noting(Link):
        def wait(self, tag: int, timeout_s: float | None = None) -> Message:
            reply = super().wait(tag, timeout_s)
            if isinstance(reply, TailAck):
                acks.append(reply)
            return reply

    def connect_noting() -> Link:
        link = link_to(server)
        return Noting(link._channel, link.timeout_s)

    with split(connect_noting) as runner:
        check(runner, PROMPT[:1025])
    assert [a.position for a in acks] == [256, 512, 768, 1024, *range(1025, 1025 + TOKENS)]
    assert [a.logits is not None for a in acks] == [False] * 4 + [True] * TOKENS
    assert all(a.k is None and a.residual is None for a in acks), "nobody here could use them"


def test_served_by_processes_it_answers_as_a_host_alone() -> None:
    with serve("--device", "none") as server:
        expected = ask(server)
    with (
        worker(0, "--model", "tiny") as (_, port),
        serve("--split-decode", "4", "--device", f"tcp://127.0.0.1:{port}") as server,
    ):
        assert ask(server) == expected
        assert ask(server) == expected
        assert server.health()["worker"]["state"] == "ready"
        assert "Traceback" not in server.output
