"""Splits what is said into content and tool calls.

A call is held back until its function is complete, and then comes as one: a start cannot be taken back, and
arguments that were cut, then closed to be valid JSON, would have an agent write half a file. So every call that is
sent is one the model finished; whatever breaks off is content, to the last character, also behind calls
that stand. The silence meanwhile is for the server to fill.

Qwen3-Coder leaves out the <tool_call> of up to every fifth call, mostly behind a sentence. So <function=NAME> begins a
block as well, if NAME is one of the tools.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backburner.api.parsing.arguments import Parameters
from backburner.api.parsing.functions import CallReader, JsonCall, Malformed, XmlCall, is_tag_name
from backburner.api.parsing.markers import (
    CALL_CLOSE,
    CALL_OPEN,
    FUNCTION_OPEN,
    WHITESPACE,
    begun,
    may_become,
    skip_whitespace,
)
from backburner.api.parsing.pieces import ContentDelta, Piece, ToolCallArguments, ToolCallStart

# Each broken call is read anew, for calls that it may hold. A model that loops can open thousands.
MAX_BROKEN_CALLS = 32

_OPENING = re.compile(r"<tool_call>|<function=[^<>\n]+>")


class CallSplitter:
    def __init__(
        self, tools: Sequence[Mapping[str, Any]], *, parallel: bool, new_id: Callable[[], str]
    ) -> None:
        self._tools = tools
        self._parallel = parallel
        self._new_id = new_id
        self._openings = frozenset((CALL_OPEN, *_function_tags(tools)))
        self.sent = 0
        self._broken = 0
        self._pending = ""
        self._start = 0  # of the pending text in the answer
        self._read: Callable[[], list[Piece] | None] = self._text
        self._silent = True  # nothing but whitespace since the start or the last call
        self._called = False  # a call came before
        # Inside a block: the blanks before it, dropped if it holds a call; and how far its marks go, which are content
        # if it breaks: behind <tool_call> or, without one and once it gave a call, 0; in a function, behind its
        # <function=, so that this does not begin it again.
        self._blanks = ""
        self._inner = 0
        self._reader: CallReader = XmlCall(0)

    def feed(self, text: str, start: int) -> list[Piece]:
        """More of the answer, and where in it that stands."""
        if not self._pending:
            self._start = start
        self._pending += text
        return self._pieces()

    def _pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        while (read := self._read()) is not None:
            pieces += read
        return pieces

    def finish(self) -> list[Piece]:
        """The withheld rest: no block will be closed any more."""
        pieces = self._pieces()
        while self._read != self._text:
            pieces += self._break_block()
            pieces += self._pieces()
        if self._pending.strip(WHITESPACE) or not (self._silent and self._called):
            pieces += self._content(len(self._pending))
        self._drop(len(self._pending))
        return pieces

    # Each reader takes what is certain from the pending text; None: it has to see more.

    def _text(self) -> list[Piece] | None:
        text = self._pending
        if self._broken >= MAX_BROKEN_CALLS:
            return self._content(len(text)) or None
        opening = next((mark for mark in _OPENING.finditer(text) if mark[0] in self._openings), None)
        end = opening.start() if opening else begun(text, *self._openings)
        said = self._blanks_before(text, end)
        pieces = self._content(said)
        if opening:
            self._blanks = text[said:end]
            self._drop(len(self._blanks))
            self._inner = len(CALL_OPEN) if opening[0] == CALL_OPEN else 0
            self._read = self._block
            return pieces
        return pieces or None

    def _block(self) -> list[Piece] | None:
        text = self._pending
        at = skip_whitespace(text, self._inner)
        if text.startswith(FUNCTION_OPEN, at):
            self._reader = XmlCall(at)
            self._inner = at + len(FUNCTION_OPEN)
            self._read = self._call
        elif text.startswith("{", at):
            self._reader = JsonCall(at)
            self._read = self._call
        elif self._inner == 0 and text.startswith(CALL_CLOSE, at):
            self._drop(at + len(CALL_CLOSE))
            self._read = self._text
        elif may_become(text[at:], FUNCTION_OPEN, *([CALL_CLOSE] if self._inner == 0 else [])):
            return None
        else:
            return self._break_block()
        return []

    def _call(self) -> list[Piece] | None:
        try:
            end = self._reader.read(self._pending)
        except Malformed:
            return self._break_block()
        if end is None:
            return None
        name, arguments = self._reader.name, self._reader.arguments(self._parameters_of)
        self._drop(end)
        self._blanks = ""
        self._inner = 0
        self._silent = self._called = True
        self._read = self._block
        if self.sent and not self._parallel:
            return []
        index = self.sent
        self.sent += 1
        return [ToolCallStart(index, self._new_id(), name), ToolCallArguments(index, arguments)]

    def _break_block(self) -> list[Piece]:
        """The rest of the block is text, in which calls may follow."""
        if self._read == self._call:
            self._broken += 1
        self._read = self._text
        blanks = len(self._blanks)
        self._pending, self._start = self._blanks + self._pending, self._start - blanks
        return self._content(blanks + self._inner)

    def _blanks_before(self, text: str, end: int) -> int:
        """Where the blank lines at the end of text[:end] start, which are dropped if a call follows."""
        said = len(text[:end].rstrip(WHITESPACE))
        if said == 0 and self._silent:
            return 0
        line_end = text.find("\n", said, end)
        return line_end if line_end >= 0 else end

    def _content(self, end: int) -> list[Piece]:
        """The pending text up to `end`, as what is said."""
        if not end:
            return []
        self._silent = False
        piece = ContentDelta(self._pending[:end], self._start)
        self._drop(end)
        return [piece]

    def _drop(self, end: int) -> None:
        self._pending = self._pending[end:]
        self._start += end

    def _parameters_of(self, name: str) -> Parameters:
        return Parameters.of(self._tools, name)


def _function_tags(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What calls of these tools begin with in the XML form."""
    functions = (tool.get("function") for tool in tools)
    names = (function.get("name") for function in functions if isinstance(function, Mapping))
    return [f"{FUNCTION_OPEN}{name}>" for name in names if isinstance(name, str) and is_tag_name(name)]
