"""Builds hosts and workers inside a test: the real parts, with nothing replaced."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from backburner.attention.engine import AttentionEngine
from backburner.attention.select import make_engine
from backburner.config import SPLIT_MIN_TOKENS
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Placement
from backburner.engine.runner import Sequence as SequenceState
from backburner.engine.scheduler import Prefill, next_step
from backburner.engine.worker_link import Watch, WorkerLink
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.load import TINY, LoadedModel, load, read_config, read_tokenizer
from backburner.native.kernels import load_kernels
from backburner.transport.link import Link
from backburner.transport.tcp import connect, listen
from backburner.worker.server import WorkerServer

ENGINES = ["native", "numpy", "mlx"] if load_kernels() else ["numpy", "mlx"]
BEST_ENGINE = ENGINES[0]


LAYERS: int = read_config(TINY)["num_hidden_layers"]
ATTENTION = tuple(range(3, LAYERS, 4))  # three recurrent layers before each


@lru_cache
def tiny() -> LoadedModel:
    return load("tiny", TINY)


@lru_cache
def tokenizer() -> Any:
    return read_tokenizer(TINY)


def chat(user: str, system: str | None = None) -> list[int]:
    """The prompt's tokens as the server would render it."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    return list(tokenizer().apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False))


NOTES = (
    "The code of the blue gate is 4821. " + "The river was calm and the boats stayed in the harbour. " * 24
)


def long_prompt() -> list[int]:
    """A fact, then filler that pushes it far out of a small window, then the question."""
    return chat("What is the code of the blue gate?", "Notes. " + NOTES)


@contextmanager
def running(server: WorkerServer) -> Iterator[WorkerServer]:
    """Serves on threads of this process for as long as the context lasts."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)


@contextmanager
def serving(
    memory_bytes: int = 2**30,
    engine: str = BEST_ENGINE,
    name: str = "test",
    model: tuple[str, Path] | None = None,
) -> Iterator[WorkerServer]:
    """A worker on a free loopback port, on threads of this process."""
    listener, attention = listen("127.0.0.1", 0), make_engine(engine)
    with running(WorkerServer(listener, attention, memory_bytes, name, (engine,), model=model)) as server:
        yield server


def port_of(server: WorkerServer) -> int:
    return int(server.address.rpartition(":")[2])


def link_to(server: WorkerServer, timeout_s: float = 10.0) -> Link:
    return Link(connect("127.0.0.1", port_of(server)), timeout_s)


def connects(to: Callable[[], Link] | Sequence[Callable[[], Link]] | None) -> Sequence[Callable[[], Link]]:
    return () if to is None else (to,) if callable(to) else to


@contextmanager
def host(
    connect_to: Callable[[], Link] | Sequence[Callable[[], Link]] | None = None,
    *,
    page_tokens: int = 64,
    window_tokens: int = 128,
    engine: str = BEST_ENGINE,
    ctx_size: int = 65_536,
    overdue_pages: int = 0,
    model: LoadedModel | None = None,
    folder: Path = TINY,
    host_tokens: int | None = None,
    split_layer: int | None = 0,
    split_tokens_min: int = SPLIT_MIN_TOKENS,
    spill_folder: Path | None = None,
    spill_bytes: int = 2**30,
    sessions: int = 0,
    watch: Watch | None = None,
) -> Iterator[ModelRunner]:
    """A runner on this thread. overdue_pages 0 makes every page move as soon as the window says so.

    folder: of `model`, if that is another one than tiny.
    """
    model = model or tiny()
    attention: AttentionEngine = make_engine(engine)
    geometry = model.model.geometry(page_tokens)
    workers = [
        WorkerLink(
            one, "test", attention, geometry, model.model.attention_layers, model.model.fingerprint, watch
        )
        for one in connects(connect_to)
    ]
    spill = (
        Spill(spill_folder, spill_bytes, attention, geometry, model.model.attention_layers)
        if spill_folder
        else None
    )
    config = read_config(folder)
    placement = Placement(
        workers=workers,
        residency=Residency(page_tokens, window_tokens),
        spill=spill,
        overdue_pages=overdue_pages,
        split_layer=split_layer,
        split_tokens_min=split_tokens_min,
        fingerprint=lambda first, stop: layers_fingerprint(folder, config, first, stop, False),
        host_tokens=host_tokens,
        sessions=sessions,
    )
    runner = ModelRunner(model, tokenizer(), attention, geometry, ctx_size, placement)
    try:
        yield runner
    finally:
        runner.close()


Answer = tuple[list[int], list[np.ndarray]]


def generate(runner: ModelRunner, prompt: Sequence[int], count: int) -> Answer:
    """`count` greedy tokens past any end token, and the logits [vocab] that each was chosen from."""
    tokens, logits, _ = generate_with_state(runner, prompt, count)
    return tokens, logits


def generate_with_state(
    runner: ModelRunner,
    prompt: Sequence[int],
    count: int,
    before_step: Callable[[SequenceState], None] = lambda state: None,
) -> tuple[list[int], list[np.ndarray], SequenceState]:
    state = runner.start(GenerationRequest("test", tuple(prompt), count))
    logits: list[np.ndarray] = []
    try:
        read = runner.read_from(state)
        while len(logits) < count:
            step = next_step(len(prompt), read, runner.step_tokens(state))
            before_step(state)
            if isinstance(step, Prefill):
                row = runner.read(state, step.start, step.stop)
                read = step.stop
            else:
                row = runner.run_token(state)
            if row is not None:
                logits.append(np.array(row.astype(mx.float32)))
                state.tokens.append(int(mx.argmax(row).item()))
    finally:
        runner.finish(state)
    return state.tokens[len(prompt) :], logits, state


def same(found: Answer, expected: Answer) -> None:
    """The tokens, and every bit of the logits that they were chosen from."""
    assert found[0] == expected[0], f"{found[0]} instead of {expected[0]}"
    for n, (a, b) in enumerate(zip(found[1], expected[1], strict=True)):
        assert np.array_equal(a, b), f"logits of token {n}"


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits until something that another thread does has come to pass."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
