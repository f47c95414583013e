"""What tests of split reads share: the worker, and the host alone with everything in its window to compare with."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from backburner.engine.runner import ModelRunner
from backburner.engine.sequence import Sequence
from backburner.model.load import TINY
from backburner.worker.server import WorkerServer
from tests.host import Answer, generate, generate_with_state, host, long_prompt, same, serving, until

PAGE = 64
WIDE = 100_000  # a window that nothing leaves
SEAM = 4
MODEL = ("tiny", TINY)
TOKENS = 3

PROMPT = long_prompt() * 4
# As if the user went on: none of these tokens follows the same one in PROMPT.
OTHER = [t ^ 1 for t in PROMPT]


@lru_cache(maxsize=64)
def alone(prompt: tuple[int, ...], count: int = TOKENS) -> Answer:
    with host(window_tokens=WIDE) as runner:
        return generate(runner, prompt, count)


def check(runner: ModelRunner, prompt: list[int], **options: Any) -> Sequence:
    tokens, logits, state = generate_with_state(runner, prompt, TOKENS, **options)
    same((tokens, logits), alone(tuple(prompt)))
    return state


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerServer]:
    with serving(model=MODEL) as server:
        yield server


@pytest.fixture
def worker(shared: WorkerServer) -> WorkerServer:
    """For tests that need no empty one."""
    until(lambda: shared._serving is None)  # the last test's host is leaving
    return shared


def seam_of(runner: ModelRunner) -> int | None:
    assert runner._seam is not None
    return runner._seam.seam


def note_of(runner: ModelRunner) -> str:
    assert runner._seam is not None
    return runner._seam.note or ""
