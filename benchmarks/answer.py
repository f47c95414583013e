"""A prompt's answer from a runner in this process, in the steps that the engine would take."""

from collections.abc import Iterator
from typing import TypeVar

from backburner.engine.engine import Runner
from backburner.engine.scheduler import Prefill, next_step

S = TypeVar("S")


def answer_tokens(runner: Runner[S], state: S, prompt_tokens: int) -> Iterator[int]:
    """Reads the prompt of a request that was started, then gives token after token, also past an end token.

    Nothing runs before a token is asked for.
    """
    read = runner.read_from(state)
    while True:
        step = next_step(prompt_tokens, read, runner.step_tokens(state))
        if isinstance(step, Prefill):
            chosen = runner.prefill(state, step.start, step.stop)
            read = step.stop
        else:
            chosen = runner.decode(state)
        if chosen is not None:
            yield chosen.token
