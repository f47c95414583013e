"""Splits an answer into what was thought and what is said.

Thoughts begin in the prompt, which may end inside <think>, or with a <think> that the answer opens with, and
end at the first </think>; any later one is plain text. The marks, the newline that the form puts on the
inner side of each, and the blank lines between </think> and the answer belong to neither part. So a template
that writes the form around the two parts again gets the very same text.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from backburner.api.parsing.markers import (
    THINK_CLOSE,
    THINK_OPEN,
    begun,
    may_become,
    skip_whitespace,
    without_leading_blank_lines,
)

Thinking = Literal["open", "none"]


class Part(NamedTuple):
    kind: Literal["thought", "answer"]
    text: str
    start: int  # in the answer, in characters


def thinking_of(prompt: str) -> Thinking:
    """Whether a rendered prompt ends inside <think>."""
    return "open" if prompt.rstrip().endswith(THINK_OPEN) else "none"


class ThinkingSplitter:
    """With `verbatim`, thoughts keep their marks and every blank: for clients that split them themselves."""

    def __init__(self, thinking: Thinking, *, verbatim: bool = False) -> None:
        self._opened = thinking == "open"
        self._verbatim = verbatim
        self._pending = ""
        self._start = 0  # of the pending text in the answer
        self._read: Callable[[], list[Part] | None] = self._at_start

    @property
    def thinks(self) -> bool:
        """Whether what comes next may still be a thought."""
        return self._read == self._thought or (self._opened and self._read == self._at_start)

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while (read := self._read()) is not None:
            parts += read
        return [part for part in parts if part.text]

    def finish(self) -> list[Part]:
        """The withheld rest. What was thought stays a thought, even if it was never closed."""
        if self._read == self._gap or not self._pending:
            return []  # blank, or it would have been read
        return [self._part("thought" if self.thinks else "answer", len(self._pending))]

    # Each reader takes what is certain from the pending text; None: it has to see more.

    def _at_start(self) -> list[Part] | None:
        mark = skip_whitespace(self._pending, 0)
        if self._pending.startswith(THINK_OPEN, mark):
            end = mark + len(THINK_OPEN)
            if len(self._pending) == end:
                return None
            if self._pending[end] == "\n":
                end += 1
            self._read = self._thought
            if self._verbatim:
                return [self._part("thought", end)]
            self._drop(end)
            return []
        if may_become(self._pending[mark:], THINK_OPEN):
            return None
        self._read = self._thought if self._opened else self._answer
        return []

    def _thought(self) -> list[Part] | None:
        end = self._pending.find(THINK_CLOSE)
        if end >= 0:
            if self._verbatim:
                self._read = self._answer
                return [self._part("thought", end + len(THINK_CLOSE))]
            thought = self._part("thought", end - self._pending.endswith("\n", 0, end))
            self._drop(self._pending.index(THINK_CLOSE) + len(THINK_CLOSE))
            self._read = self._gap
            return [thought]
        certain = begun(self._pending, THINK_CLOSE)
        if not self._verbatim and self._pending[:certain].endswith("\n"):
            certain -= 1
        return [self._part("thought", certain)] if certain else None

    def _gap(self) -> list[Part] | None:
        if skip_whitespace(self._pending, 0) == len(self._pending):
            return None
        self._drop(len(self._pending) - len(without_leading_blank_lines(self._pending)))
        self._read = self._answer
        return []

    def _answer(self) -> list[Part] | None:
        return [self._part("answer", len(self._pending))] if self._pending else None

    def _part(self, kind: Literal["thought", "answer"], end: int) -> Part:
        part = Part(kind, self._pending[:end], self._start)
        self._drop(end)
        return part

    def _drop(self, end: int) -> None:
        self._pending = self._pending[end:]
        self._start += end
