"""Answers of a model folder through Backburner's own engine, which reads a long prefix once for many questions."""

from pathlib import Path

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner
from backburner.engine.scheduler import Prefill, next_step
from backburner.model.load import load, read_tokenizer

# Large pages: fewer partials to fold for each token of a long context on one machine.
PAGE_TOKENS = 1024
CTX_SIZE = 131_072


class Player:
    def __init__(self, folder: Path, engine: str = "auto") -> None:
        loaded = load("tiny", folder)
        attention = make_engine(engine)
        self.tokenizer = read_tokenizer(folder)
        self.runner = ModelRunner(
            loaded, self.tokenizer, attention, loaded.model.geometry(PAGE_TOKENS), CTX_SIZE
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def read(self, text: str) -> list[int]:
        """Reads a text, which the engine keeps, so that answers to what follows start there.

        It ends at a special token, so that what follows tokenizes apart from it.
        """
        tokens = self.encode(text)
        self._run(tokens, 1)
        return tokens

    def answer(self, text: str, base: list[int] | None = None, limit: int = 120) -> str:
        """The greedy answer to a rendered prompt, or to what follows `base`, up to the end token."""
        return self.tokenizer.decode(self.answer_tokens(text, base, limit))

    def answer_tokens(self, text: str, base: list[int] | None = None, limit: int = 120) -> list[int]:
        return self._run([*(base or ()), *self.encode(text)], limit)

    def _run(self, prompt: list[int], limit: int) -> list[int]:
        runner, out = self.runner, []
        state = runner.start(GenerationRequest("evaluate", tuple(prompt), limit))
        try:
            read = runner.read_from(state)
            while len(out) < limit:
                step = next_step(len(prompt), read, runner.step_tokens(state))
                if isinstance(step, Prefill):
                    chosen = runner.prefill(state, step.start, step.stop)
                    read = step.stop
                else:
                    chosen = runner.decode(state)
                if chosen is None:
                    continue
                if runner.is_end(chosen.token):
                    break
                out.append(chosen.token)
        finally:
            runner.finish(state)
        return out
