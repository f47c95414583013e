"""Answers of a model folder through Backburner's own engine, with a long prefix read once for many questions."""

import copy
from pathlib import Path

import mlx.core as mx

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Sequence
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
            loaded, self.tokenizer, attention, loaded.model.geometry(PAGE_TOKENS), CTX_SIZE, None
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _start(self, tokens: list[int]) -> Sequence:
        return self.runner.start(GenerationRequest("evaluate", tuple(tokens), 1))

    def read(self, text: str) -> Sequence:
        """A sequence that has read a text. It ends at a special token, so that what follows tokenizes apart from it."""
        tokens = self.encode(text)
        state = self._start(tokens)
        self._run(state, 0)
        return state

    def _run(self, state: Sequence, read: int) -> mx.array:
        row = None
        while read < len(state.tokens):
            step = next_step(len(state.tokens), read)
            stop = step.stop if isinstance(step, Prefill) else read + 1
            row = self.runner.run(state, state.tokens[read:stop], last=stop == len(state.tokens))
            read = stop
        assert row is not None
        return row

    def _fork(self, base: Sequence, more: list[int]) -> Sequence:
        """A sequence that goes on from `base` without changing it: full pages are shared, the open page is copied."""
        state = self._start(base.tokens + more)
        for i, theirs in enumerate(base.caches):
            mine = state.caches[i]
            if hasattr(theirs, "pages"):
                mine.pages = [*theirs.pages[:-1], copy.deepcopy(theirs.pages[-1])]
                mine.offset = theirs.offset
            else:
                mine.cache = list(theirs.cache)
        state.table.keys = list(base.table.keys)
        return state

    def answer(self, text: str, base: Sequence | None = None, limit: int = 120) -> str:
        """The greedy answer to a rendered prompt, or to what follows `base`, up to the end token."""
        more = self.encode(text)
        state = self._fork(base, more) if base else self._start(more)
        row = self._run(state, len(base.tokens) if base else 0)
        out: list[int] = []
        for _ in range(limit):
            token = int(mx.argmax(row).item())
            if self.runner.is_end(token):
                break
            out.append(token)
            state.tokens.append(token)
            row = self.runner.run(state, [token], last=True)
        return self.tokenizer.decode(out)
