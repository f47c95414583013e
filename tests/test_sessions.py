"""Warm equals cold: a kept conversation goes on with the bits of a fresh one, and gives way when it has to."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from backburner.attention.select import make_engine
from backburner.engine import runner as runner_module
from backburner.engine.engine import Engine
from backburner.engine.request import Delta, Failed, Finished, GenerationRequest, Grammar
from backburner.engine.runner import ModelRunner
from backburner.engine.sessions import Sessions
from backburner.errors import BadRequest, GrammarError
from backburner.worker.store import PageStore
from tests.host import (
    BEST_ENGINE,
    NOTES,
    chat,
    generate,
    generate_with_state,
    host,
    link_to,
    serving,
    tiny,
    until,
)
from tests.transport_helpers import LONG_S

TOKENS = 6
CONVERSATION = chat("What is the code of the blue gate?", "Notes. " + NOTES * 4)
OTHER = chat("What is the code of the red door?", "Notes. " + NOTES.replace("blue gate", "red door") * 4)

# Where kept conversations lie: all here; with a worker that has nothing to hold; with most of them held.
PLACES: dict[str, dict[str, int]] = {
    "alone": {"page_tokens": 100, "window_tokens": 200},
    "worker": {"page_tokens": 100, "window_tokens": 4000},
    "held": {"page_tokens": 64, "window_tokens": 64},
    "held, pages across ubatches": {"page_tokens": 100, "window_tokens": 100},
    "held and spilled": {"page_tokens": 100, "window_tokens": 100},
}


def turns(conversation: list[int], lengths: tuple[int, ...] = (600, 830, 1100)) -> list[list[int]]:
    """A conversation that grows. What the model answers is not in it: then it is an edit as well."""
    return [(conversation * 2)[:length] for length in lengths]


def held_page_bytes() -> int:
    """Of a page of 64 tokens over all layers."""
    return make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(64)) * len(tiny().model.attention_layers)


@lru_cache
def cold(prompt: tuple[int, ...], page_tokens: int = 100) -> tuple[list[int], list[np.ndarray]]:
    """What a fresh host gives."""
    with host(page_tokens=page_tokens) as runner:
        return generate(runner, prompt, TOKENS)


@contextmanager
def keeping(where: str, folder: Path, sessions: int = 3, **more: int) -> Iterator[ModelRunner]:
    with ExitStack() as stack:
        connect = None
        if where != "alone":
            server = stack.enter_context(serving())
            connect = lambda: link_to(server)  # noqa: E731
        spill = folder if "spilled" in where else None
        yield stack.enter_context(
            host(connect, sessions=sessions, spill_folder=spill, **(PLACES[where] | more))
        )


def warm(runner: ModelRunner, prompt: list[int], page_tokens: int = 100) -> int:
    """Runs a request, compares it with a fresh host, and says from where it was read."""
    tokens, logits, state = generate_with_state(runner, prompt, TOKENS)
    wanted = cold(tuple(prompt), page_tokens)
    assert tokens == wanted[0]
    assert all(np.array_equal(a, b) for a, b in zip(logits, wanted[1], strict=True))
    return state.read_from


@pytest.fixture(params=list(PLACES))
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_a_dropped_conversation_takes_is_free_at_once(where: str, tmp_path: Path) -> None:
    with keeping(where, tmp_path) as runner:
        _, _, state = generate_with_state(runner, CONVERSATION[:600], TOKENS)
        table = weakref.ref(state.table)
        del state
        gc.disable()  # the collector of cycles comes when it likes
        try:
            assert runner.sessions.drop_oldest()
            assert table() is None
        finally:
            gc.enable()


def test_later_turns_have_the_bits_of_a_fresh_host(where: str, tmp_path: Path) -> None:
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        first, second, third = turns(CONVERSATION)
        assert warm(runner, first, size) == 0
        assert warm(runner, second, size) == 512
        assert warm(runner, third, size) == 768
        assert warm(runner, third, size) == 1024, "the same again: all but its last ubatch"
        assert len(runner.sessions) == 1
        assert (runner.sessions.take(third, lambda s, n: s.table.held) is not None) is ("held" in where)


@pytest.mark.parametrize("more", [10, 100])
def test_a_turn_that_keeps_the_answer_goes_on_behind_the_prompt(
    where: str, more: int, tmp_path: Path
) -> None:
    """Rows of an answer were made token by token: a fresh read makes them in ubatches, and so does this one.

    With 10 tokens more, the last ubatch covers the whole answer: its pages are the conversation's own both times, with
    the same tokens and other rows.
    """
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        first = turns(CONVERSATION)[0]
        answer, _ = generate(runner, first, 150)
        assert warm(runner, [*first, *answer, *first[:more]], size) == 512


def test_an_edit_in_the_middle_goes_back_before_it(where: str, tmp_path: Path) -> None:
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        first, second, _ = turns(CONVERSATION)
        generate(runner, first, 2)
        generate(runner, second, 2)
        edited = [*second[:700], second[700] ^ 1, *second[701:]]
        assert warm(runner, edited, size) == 512
        assert warm(runner, second, size) == 512, "and back again"
        shorter = second[:650]
        assert warm(runner, shorter, size) == 512


def test_two_conversations_in_turns_do_not_mix(where: str, tmp_path: Path) -> None:
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        starts = [
            (warm(runner, a, size), warm(runner, b, size))
            for a, b in zip(turns(CONVERSATION), turns(OTHER), strict=True)
        ]
        assert starts == [(0, 0), (512, 512), (768, 768)]
        assert len(runner.sessions) == 2


def test_a_cancelled_read_leaves_the_conversation_usable(where: str, tmp_path: Path) -> None:
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        first, _, third = turns(CONVERSATION)
        generate(runner, first, 2)
        state = runner.start(GenerationRequest("cancelled", tuple(third), 1))
        assert runner.read_from(state) == 512
        runner.prefill(state, 512, 768)
        runner.finish(state)
        assert warm(runner, third, size) == 512
        state = runner.start(GenerationRequest("cancelled at once", tuple(third), 1))
        runner.finish(state)
        assert warm(runner, third, size) == 1024
        state = runner.start(GenerationRequest("cancelled in its answer", tuple(third), 9))
        runner.prefill(state, 1024, len(third))
        runner.decode(state)
        runner.finish(state)
        assert warm(runner, third, size) == 1024


def test_a_grammar_that_cannot_be_kept_costs_no_conversation(where: str, tmp_path: Path) -> None:
    size = PLACES[where]["page_tokens"]
    with keeping(where, tmp_path) as runner:
        first, second, _ = turns(CONVERSATION)
        generate(runner, first, 2)
        with pytest.raises(GrammarError):
            runner.start(GenerationRequest("r", tuple(second), 1, grammar=Grammar('{"type": 5}')))
        assert len(runner.sessions) == 1
        assert warm(runner, second, size) == 512


def test_a_cancelled_first_read_is_kept_from_its_last_checkpoint() -> None:
    """Checkpoints of a long read are 4,096 tokens apart."""
    prompt = (CONVERSATION * 10)[:5000]
    with host(page_tokens=256, sessions=1) as runner:
        wanted = generate(runner, prompt, 2)
    with host(page_tokens=256, sessions=1) as runner:
        state = runner.start(GenerationRequest("cancelled", tuple(prompt), 1))
        for start in range(0, 4096 + 512, 256):
            runner.prefill(state, start, start + 256)
        runner.finish(state)
        tokens, logits, state = generate_with_state(runner, prompt, 2)
        assert state.read_from == 4096
    assert tokens == wanted[0]
    assert all(np.array_equal(a, b) for a, b in zip(logits, wanted[1], strict=True))


def test_a_lost_worker_costs_a_kept_conversation_its_warmth_but_no_token(tmp_path: Path) -> None:
    for spill, read_from in ((tmp_path, 512), (None, 0)):
        with (
            serving() as server,
            host(lambda: link_to(server), sessions=1, spill_folder=spill, **PLACES["held"]) as runner,
        ):
            first, second, _ = turns(CONVERSATION)
            generate(runner, first, 2)
            connection = runner.workers[0].connection
            assert connection is not None
            connection.link.close()
            server.close()
            prompt = [*first[:590], *second[590:]]
            assert warm(runner, prompt, 64) == read_from


@pytest.mark.parametrize("spilled", [True, False])
def test_a_worker_that_comes_back_is_not_sent_what_it_still_has(tmp_path: Path, spilled: bool) -> None:
    """Its process lived on, only the link was lost."""
    spill = tmp_path if spilled else None
    with (
        serving() as server,
        host(lambda: link_to(server), sessions=1, spill_folder=spill, **PLACES["held"]) as runner,
    ):
        first, second, _ = turns(CONVERSATION)
        generate(runner, first, 2)
        (worker,) = runner.workers
        (state,) = runner.sessions
        layers = len(state.table.layers)
        until(lambda: server.store.complete_pages() == 600 // 64 * layers)
        connection = worker.connection
        assert connection is not None
        connection.link.close()
        until(lambda: worker.connection is not None)
        assert worker.connection is not connection
        assert warm(runner, second, 64) == 512
        back = worker.connection
        assert back is not None
        assert list(runner.sessions) == [state]
        assert state.held is not None
        assert state.held.held_on(0, state.table.held) == state.table.held, "in use again, for all pages"
        assert back.mover.found_pages >= 512 // 64 * layers
        assert back.mover.moved_pages <= (len(second) + TOKENS - 512) // 64 * layers


def test_a_worker_that_only_has_to_be_greeted_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked for it since the link was lost, and nobody else has the pages."""
    monkeypatch.setattr(runner_module, "RETRY_GREETING_S", LONG_S)
    with (
        serving() as server,
        host(lambda: link_to(server), sessions=1, **PLACES["held"]) as runner,
    ):
        first, second, _ = turns(CONVERSATION)
        generate(runner, first, 2)
        connection = runner.workers[0].connection
        assert connection is not None
        connection.link.close()
        until(lambda: server._serving is None)
        assert warm(runner, second, 64) == 512


def test_the_least_recently_used_conversation_gives_way() -> None:
    given_up: list[str] = []

    class Kept:
        def __init__(self, name: str, tokens: list[int]) -> None:
            self.name, self.tokens = name, tokens

    def common(session: Kept, equal: int) -> int:
        return equal

    sessions: Sessions[Kept] = Sessions(lambda s: given_up.append(s.name), limit=2)
    sessions.put(Kept("a", [1, 2, 3]))
    sessions.put(Kept("b", [1, 5]))
    found = sessions.take([1, 2, 9], common)
    assert found is not None
    assert found.name == "a", "the one that saves the most"
    assert len(sessions) == 1
    sessions.put(found)
    sessions.put(Kept("c", [7]))
    assert given_up == ["b"]
    assert sessions.take([8], common) is None
    assert sessions.take([], common) is None
    sessions.clear()
    assert given_up == ["b", "a", "c"]
    assert not sessions.drop_oldest()


def test_more_conversations_than_are_kept_are_read_anew(tmp_path: Path) -> None:
    third = chat("Who keeps the key?", "Notes. " + NOTES.replace("river", "garden") * 4)
    with keeping("held", tmp_path, sessions=2) as runner:
        prompts = [turns(c)[0] for c in (CONVERSATION, OTHER, third)]
        assert [warm(runner, p, 64) for p in prompts] == [0, 0, 0]
        assert len(runner.sessions) == 2
        assert warm(runner, prompts[2], 64) == 512
        assert warm(runner, prompts[1], 64) == 512
        assert warm(runner, prompts[0], 64) == 0


def test_none_is_kept_when_none_should_be(tmp_path: Path) -> None:
    with keeping("alone", tmp_path, sessions=0) as runner:
        first, second, _ = turns(CONVERSATION)
        assert [warm(runner, first), warm(runner, second)] == [0, 0]
        assert len(runner.sessions) == 0


def test_kept_conversations_give_way_when_the_hosts_memory_is_short() -> None:
    with host(page_tokens=100, sessions=3, host_tokens=1000) as runner:
        a, b = turns(CONVERSATION)[0], turns(OTHER)[0]
        assert warm(runner, a) == 0
        assert warm(runner, a) == 512
        assert warm(runner, b) == 0  # 600 and 600 do not fit
        assert len(runner.sessions) == 1
        assert warm(runner, b) == 512
        assert warm(runner, a) == 0


def test_pages_of_a_kept_conversation_give_way_at_a_full_worker() -> None:
    """What is bound cannot be evicted there, so a conversation that nobody waits for must not keep it bound."""
    with (
        serving(memory_bytes=10 * held_page_bytes()) as server,
        host(lambda: link_to(server), sessions=3, **PLACES["held"]) as runner,
    ):
        for conversation in (CONVERSATION, OTHER):
            warm(runner, turns(conversation)[0], 64)
        assert len(runner.sessions) == 1, "the first has given way"
        # Whether the worker was asked again in time for the last pages depends on its speed.
        (state,) = runner.sessions
        assert state.table.held > 2, "the two pages that had room beside the first conversation's"


def test_a_full_worker_costs_no_conversation_that_has_no_page_there() -> None:
    with (
        serving(memory_bytes=2 * held_page_bytes()) as server,
        host(lambda: link_to(server), sessions=3, page_tokens=64, window_tokens=400) as runner,
    ):
        short = [turns(CONVERSATION, (300,))[0], turns(OTHER, (310,))[0]]
        for prompt in short:
            warm(runner, prompt, 64)
        _, _, state = generate_with_state(runner, turns(CONVERSATION[1:], (1000,))[0], 1)
        assert state.held is not None
        assert "out_of_budget" in str(state.held.refused)
        assert len(runner.sessions) == 3
        assert [warm(runner, prompt, 64) for prompt in short] == [256, 256]


def test_a_refusal_that_memory_has_nothing_to_do_with_costs_no_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as server, host(lambda: link_to(server), sessions=3, **PLACES["held"]) as runner:
        warm(runner, turns(CONVERSATION)[0], 64)

        def refused(*_: object) -> None:
            raise BadRequest("not this one")

        monkeypatch.setattr(PageStore, "put", refused)
        _, _, state = generate_with_state(runner, turns(OTHER)[0], 1)
        assert state.held is not None
        assert "bad_request" in str(state.held.refused)
        assert len(runner.sessions) == 2


def test_what_was_refused_once_is_asked_for_again_with_the_next_request() -> None:
    with (
        serving(memory_bytes=2 * held_page_bytes()) as server,
        host(lambda: link_to(server), sessions=1, **PLACES["held"]) as runner,
    ):
        first, second, _ = turns(CONVERSATION)
        warm(runner, first, 64)
        (state,) = runner.sessions
        assert state.table.held == 2
        server.store.memory_bytes = 2**30
        assert warm(runner, second, 64) == 512
        assert state.table.held == (len(second) + TOKENS - 64) // 64


def ask(engine: Engine, prompt: list[int]) -> tuple[Finished, list[int]]:
    events: list[object] = []
    engine.submit(GenerationRequest("r", tuple(prompt), 4, ignore_eos=True), events.append)
    until(lambda: bool(events) and isinstance(events[-1], Finished | Failed), 30)
    end = events[-1]
    assert isinstance(end, Finished), end
    return end, [t for e in events if isinstance(e, Delta) for t in e.token_ids]


def test_the_engine_reports_what_was_cached() -> None:
    made: list[object] = []  # the context lives until the engine has closed its runner

    def make() -> ModelRunner:
        context = host(sessions=2, page_tokens=100)
        made.append(context)
        return context.__enter__()

    engine: Engine = Engine(make, "tiny")
    engine.start()
    try:
        first, second, _ = turns(CONVERSATION)
        end, tokens = ask(engine, first)
        assert end == Finished("length", 600, 4, cached_tokens=0)
        assert tokens == cold(tuple(first))[0][:4]
        end, tokens = ask(engine, second)
        assert end == Finished("length", 830, 4, cached_tokens=512)
        assert tokens == cold(tuple(second))[0][:4]
    finally:
        engine.close()


@pytest.mark.parametrize("ctx_size", [1, 2, 300, 513, 800])
def test_a_small_context_does_not_keep_the_server_from_starting(ctx_size: int) -> None:
    with (
        serving() as server,
        host(lambda: link_to(server), ctx_size=ctx_size, host_tokens=ctx_size) as runner,
    ):
        runner.warm_up()
