"""Where a page lives never changes an answer: logits are equal bit for bit, tokens across engines."""

import shutil

import mlx.core as mx
import numpy as np
import pytest

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.sequence import Sequence
from backburner.errors import HostFull, WorkerLost
from backburner.kv.mover import PageMover
from backburner.model import load as load_module
from backburner.transport import messages as m
from backburner.worker.session import Session
from tests.host import (
    BEST_ENGINE,
    ENGINES,
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

TOKENS = 40


def memory_of_two_pages() -> int:
    """Room for two pages of all attention layers, and for one layer's third."""
    layers = len(tiny().model.attention_layers)
    return (2 * layers + 1) * make_engine(BEST_ENGINE).page_bytes(tiny().model.geometry(64))


def mover_of(runner: ModelRunner) -> PageMover:
    connection = runner.workers[0].connection
    assert connection is not None
    return connection.mover


@pytest.fixture(scope="module")
def alone():
    with host() as runner:
        return generate(runner, long_prompt(), TOKENS)


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_bitwise_equal_with_pages_local_or_held(engine: str) -> None:
    prompt = long_prompt()
    with host(engine=engine) as runner:
        tokens_alone, logits_alone = generate(runner, prompt, TOKENS)
    with serving(engine=engine) as server, host(lambda: link_to(server), engine=engine) as runner:
        tokens, logits, state = generate_with_state(runner, prompt, TOKENS)
        assert state.table.held >= 4, "the test must really use held pages"
        assert server.store.complete_pages() >= 4 * len(state.table.layers)
    assert tokens == tokens_alone
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))


@pytest.mark.parametrize(
    ("page_tokens", "window_tokens"), [(16, 16), (48, 100), (64, 64), (64, 256), (128, 256)]
)
def test_any_window_gives_the_same_bits(page_tokens: int, window_tokens: int) -> None:
    prompt = long_prompt()
    with host(page_tokens=page_tokens) as runner:
        _, logits_alone = generate(runner, prompt, 8)
    sizes = {"page_tokens": page_tokens, "window_tokens": window_tokens}
    with serving() as server, host(lambda: link_to(server), **sizes) as runner:
        _, logits, state = generate_with_state(runner, prompt, 8)
        assert state.table.held >= 1
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))


@pytest.mark.parametrize("worker_engine", ENGINES)
def test_tokens_are_equal_across_engines(alone, worker_engine: str) -> None:
    with serving(engine=worker_engine) as server, host(lambda: link_to(server), engine=BEST_ENGINE) as runner:
        tokens, logits = generate(runner, long_prompt(), TOKENS)
    assert tokens == alone[0]
    assert max(np.abs(a - b).max() for a, b in zip(logits, alone[1], strict=True)) < 1e-3


def test_page_size_changes_no_token(alone) -> None:
    for page_tokens in (16, 100, 4096):
        with host(page_tokens=page_tokens) as runner:
            assert generate(runner, long_prompt(), TOKENS)[0] == alone[0]


def test_a_second_conversation_finds_the_pages_of_the_first(alone) -> None:
    with serving() as server, host(lambda: link_to(server)) as runner:
        first, _ = generate(runner, long_prompt(), TOKENS)
        mover = mover_of(runner)
        sent = mover.moved_pages
        second, logits = generate(runner, long_prompt(), TOKENS)
        # What whole ubatches have read is shared; the other pages are each conversation's own.
        shared = (
            len(long_prompt()) // UBATCH_TOKENS * UBATCH_TOKENS // 64 * len(tiny().model.attention_layers)
        )
        assert mover.found_pages == shared > 0
        assert mover.moved_pages == 2 * sent - shared
    assert first == second == alone[0]
    assert all(np.array_equal(a, b) for a, b in zip(logits, alone[1], strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_turn_has_the_bits_that_it_would_have_alone(engine: str) -> None:
    """Its beginning was partly computed token by token before: those rows must not be found by their tokens."""
    first = long_prompt()
    with host(engine=engine) as runner:
        answer, _ = generate(runner, first, 150)
        second = [*first, *answer, *first[:90]]
        _, logits_alone = generate(runner, second, 8)
    with serving(engine=engine) as server, host(lambda: link_to(server), engine=engine) as runner:
        generate(runner, first, 150)
        mover = mover_of(runner)
        sent = mover.moved_pages
        _, logits, state = generate_with_state(runner, second, 8)
        assert state.table.held * 64 > len(first)
        assert mover.found_pages >= len(state.table.layers), "the whole ubatches of the first turn are shared"
        assert mover.moved_pages > sent
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))


def test_a_page_of_another_engine_is_not_taken_for_ours() -> None:
    with serving() as server:
        for engine in ("numpy", BEST_ENGINE):
            with host(lambda: link_to(server), engine=engine) as runner:
                generate(runner, long_prompt(), 2)
                assert mover_of(runner).found_pages == 0
            until(lambda: server._serving is None)


def test_a_partial_of_another_shape_is_refused(alone, monkeypatch, caplog, tmp_path) -> None:
    attend = Session._attend
    monkeypatch.setattr(
        Session,
        "_attend",
        lambda self, request: m.PartialReply(
            *(x[:, :1] for x in (attend(self, request).o, attend(self, request).lse))
        ),
    )
    with serving() as server:
        with host(lambda: link_to(server)) as runner, pytest.raises(WorkerLost):
            generate(runner, long_prompt(), 1)
        assert "a partial of shape" in caplog.text
        until(lambda: server._serving is None)
        with host(lambda: link_to(server), spill_folder=tmp_path) as runner:
            tokens, logits = generate(runner, long_prompt(), 2)
            assert tokens == alone[0][:2]
            assert all(np.array_equal(a, b) for a, b in zip(logits, alone[1], strict=False))


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows[:, :5],
        lambda rows: rows[:1],
        lambda rows: rows[..., :8],
        lambda rows: rows.astype(np.float16),
    ],
    ids=["rows", "heads", "head_dim", "dtype"],
)
def test_a_page_that_comes_back_in_another_shape_is_as_good_as_lost(monkeypatch, damage) -> None:
    """The edit goes back into a held page, of which nobody else has a copy: the conversation is read anew."""
    prompt = (long_prompt() * 3)[:1000]
    edited = prompt[:900] + [t ^ 1 for t in prompt[900:]]
    get_page = Session._get_page

    def damaged(session: Session, request: m.GetPage) -> m.PageRows:
        reply = get_page(session, request)
        return m.PageRows(damage(reply.k), damage(reply.v))

    with host(page_tokens=100) as runner:
        expected = generate(runner, edited, 2)
    monkeypatch.setattr(Session, "_get_page", damaged)
    with serving() as server, host(lambda: link_to(server), page_tokens=100, sessions=1) as runner:
        _, _, state = generate_with_state(runner, prompt, 2)
        assert state.table.held * 100 > 768, "the test must really go back into a held page"
        tokens, logits, state = generate_with_state(runner, edited, 2)
        same((tokens, logits), expected)
        assert state.read_from == 0


def test_a_worker_that_is_full_leaves_pages_on_the_host(alone, caplog) -> None:
    with (
        serving(memory_bytes=memory_of_two_pages()) as server,
        host(
            lambda: link_to(server), sessions=1
        ) as runner,  # kept, so that its holder can be asked afterwards
    ):
        tokens, logits, state = generate_with_state(runner, long_prompt(), TOKENS)
        assert state.table.held == 2
        assert state.held is not None
        assert "out_of_budget" in str(state.held.refused)
    assert "takes no more pages" in caplog.text
    assert tokens == alone[0]
    assert all(np.array_equal(a, b) for a, b in zip(logits, alone[1], strict=True))


def test_a_worker_that_is_back_within_a_request_answers_for_pages_without_a_copy(alone, tmp_path) -> None:
    """The spill was full, the link was lost for a moment, and the worker still has what only it had."""
    lost: list[object] = []
    with (
        serving() as server,
        host(lambda: link_to(server), spill_folder=tmp_path, spill_bytes=memory_of_two_pages()) as runner,
    ):
        (worker,) = runner.workers

        def lose(state: Sequence) -> None:
            if lost or state.table.held < 4:
                return
            assert runner.status().spill_pages == 2
            lost.append(connection := worker.connection)
            assert connection is not None
            connection.link.close()
            until(lambda: worker.connection is not None)

        tokens, logits, _ = generate_with_state(runner, long_prompt(), TOKENS, before_step=lose)
        assert worker.connection not in [None, *lost]
    assert lost, "the test must really use held pages"
    assert tokens == alone[0]
    assert all(np.array_equal(a, b) for a, b in zip(logits, alone[1], strict=True))


def test_a_host_whose_memory_is_full_says_so_instead_of_dying() -> None:
    with (
        serving(memory_bytes=memory_of_two_pages()) as server,
        host(lambda: link_to(server), host_tokens=300) as runner,
        pytest.raises(
            HostFull,
            match=r"can hold 300 tokens of this conversation, and (out_of_budget|the worker has not)",
        ),
    ):
        generate(runner, long_prompt(), 1)
    with serving() as server, host(lambda: link_to(server), host_tokens=300) as runner:
        server.close()
        connection = runner.workers[0].connection
        assert connection is not None
        connection.link.close()
        with pytest.raises(HostFull, match="the worker is away"):
            runner.start(GenerationRequest("too long to read alone", tuple(long_prompt()), 1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_activations_cross_bit_for_bit_too(dtype: str, monkeypatch, tmp_path) -> None:
    """What a Mac runs: activations, K, V and queries in 16 bits, partials in fp32."""
    monkeypatch.setattr(load_module, "runs_on_cpu", lambda: False)
    folder = shutil.copytree(load_module.TINY, tmp_path / "tiny")
    weights = mx.load(str(folder / "model.safetensors"))
    cast = {k: v if k.endswith("A_log") else v.astype(getattr(mx, dtype)) for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), cast)
    model = load_module.load("tiny", folder)
    assert model.model.geometry(64).dtype == dtype
    prompt = long_prompt()
    with host(model=model) as runner:
        _, logits_alone = generate(runner, prompt, 4)
    with serving() as server, host(lambda: link_to(server), model=model) as runner:
        _, logits, state = generate_with_state(runner, prompt, 4)
        assert state.table.held >= 4
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))
