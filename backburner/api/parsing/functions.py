"""Reads one call as a model writes it, in Qwen's XML form or the Hermes JSON form, however it is cut.

mlx-lm's `qwen3_coder` and `json_tools` read the same two forms, but only a whole block, which ends at the first
</tool_call> wherever it stands. We do not use them because
* of several functions in one block they keep the first only;
* a value is cut at the first </parameter>, also where the model writes about parameters;
* a "null" that the schema calls a string becomes None, and an integer that is none raises;
* NaN and 1e999 come through, and are not JSON again.
"""

import re
from collections.abc import Callable
from typing import Protocol

from backburner.api.parsing.arguments import Parameters, hermes_call
from backburner.api.parsing.markers import (
    FUNCTION_CLOSE,
    FUNCTION_OPEN,
    PARAMETER_CLOSE,
    PARAMETER_OPEN,
    may_become,
    skip_whitespace,
)


class Malformed(Exception):
    """The text is no call, whatever follows it."""


class CallReader(Protocol):
    """Reads from where it was built; `text` may have grown since the last time, and nothing else."""

    name: str

    def read(self, text: str) -> int | None:
        """Where the call ends; None if more of it has to be seen. Raises Malformed."""
        ...

    def arguments(self, parameters_of: Callable[[str], Parameters]) -> str:
        """The arguments as JSON, typed by the schema of the function."""
        ...


# No name is longer: the wait for the end of a tag has to end.
_TAG_NAME = re.compile(r"[^<>\n]{0,256}")


def is_tag_name(name: str) -> bool:
    """Whether a function or parameter of this name can be written, and comes out as it is."""
    if not name or name != name.strip() or _TAG_NAME.fullmatch(name) is None:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_PARAMETER_TAG = re.compile(r"<parameter=[^<>\n]{1,256}>|</parameter>")
_PARAMETER_TAG_BEGUN = re.compile(r"<parameter=[^<>\n]{0,256}")


class XmlCall:
    """<function=NAME> <parameter=KEY>VALUE</parameter> ... </function>

    A value may hold the tags themselves. Those of parameters are counted, so that a quoted call stays whole, and a
    closing tag ends the value only where the function goes on behind it. The price: a parameter that is not
    closed takes the function down to text with it, rather than to arguments that were never meant.
    """

    def __init__(self, start: int) -> None:
        self.name = ""
        self._values: dict[
            str, str
        ] = {}  # of a parameter that is given twice the last one counts, as in JSON
        self._key = ""
        self._value_start = 0
        self._depth = 0
        self._at = start + len(FUNCTION_OPEN)
        self._step: Callable[[str], bool] = self._read_name
        self._done = False

    def read(self, text: str) -> int | None:
        while not self._done:
            if not self._step(text):
                return None
        return self._at

    def arguments(self, parameters_of: Callable[[str], Parameters]) -> str:
        return parameters_of(self.name).json_of(self._values)

    # Each step moves on in the text; False: it has to see more.

    def _read_name(self, text: str) -> bool:
        name = self._tag_name(text)
        if name is None:
            return False
        self.name = name
        self._step = self._read_tag
        return True

    def _read_tag(self, text: str) -> bool:
        at = skip_whitespace(text, self._at)
        if text.startswith(PARAMETER_OPEN, at):
            self._at = at + len(PARAMETER_OPEN)
            self._step = self._read_key
            return True
        if text.startswith(FUNCTION_CLOSE, at):
            self._at = at + len(FUNCTION_CLOSE)
            self._done = True
            return True
        if may_become(text[at:], PARAMETER_OPEN, FUNCTION_CLOSE):
            return False
        raise Malformed

    def _read_key(self, text: str) -> bool:
        key = self._tag_name(text)
        if key is None:
            return False
        self._key = key
        self._value_start = self._at
        self._step = self._read_value
        return True

    def _read_value(self, text: str) -> bool:
        tag = _PARAMETER_TAG.search(text, self._at)
        if tag is None:
            self._at = self._unfinished_tag(text)
            return False
        if tag[0] != PARAMETER_CLOSE:
            self._depth += 1
        elif self._depth:
            self._depth -= 1
        else:
            following = skip_whitespace(text, tag.end())
            if text.startswith((PARAMETER_OPEN, FUNCTION_CLOSE), following):
                self._values[self._key] = _unframed(text[self._value_start : tag.start()])
                self._step = self._read_tag
            elif may_become(text[following:], PARAMETER_OPEN, FUNCTION_CLOSE):
                self._at = tag.start()
                return False
        self._at = tag.end()
        return True

    def _tag_name(self, text: str) -> str | None:
        """The rest of a tag up to its >."""
        match = _TAG_NAME.match(text, self._at)
        assert match is not None  # it matches the empty string
        if match.end() == len(text):
            return None
        name = match[0].strip()
        if text[match.end()] != ">" or not name:
            raise Malformed
        self._at = match.end() + 1
        return name

    def _unfinished_tag(self, text: str) -> int:
        last = text.rfind("<", self._at)
        if last >= 0:
            tail = text[last:]
            if may_become(tail, PARAMETER_OPEN, PARAMETER_CLOSE) or _PARAMETER_TAG_BEGUN.fullmatch(tail):
                return last
        return len(text)


def _unframed(value: str) -> str:
    """Without the one newline that the form puts on each side; all else is the value's own."""
    return value.removeprefix("\n").removesuffix("\n")


# Outside of strings JSON has no "<": where one stands, the object is broken, and the wait for its end is over.
_OUTSIDE = re.compile(r'["{}\[\]<]')
_INSIDE = re.compile(r'["\\]')


class JsonCall:
    """{"name": NAME, "arguments": {...}}"""

    def __init__(self, start: int) -> None:
        self.name = ""
        self._arguments = ""
        self._start = self._at = start
        self._depth = 0
        self._quoted = False

    def read(self, text: str) -> int | None:
        while (mark := (_INSIDE if self._quoted else _OUTSIDE).search(text, self._at)) is not None:
            self._at = mark.end()
            match mark[0]:
                case '"':
                    self._quoted = not self._quoted
                case "\\":
                    if self._at == len(text):
                        self._at = mark.start()
                        return None
                    self._at += 1
                case "{" | "[":
                    self._depth += 1
                case "<":
                    raise Malformed
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        self._accept(text[self._start : self._at])
                        return self._at
        self._at = len(text)
        return None

    def arguments(self, parameters_of: Callable[[str], Parameters]) -> str:
        return self._arguments  # JSON has types of its own

    def _accept(self, text: str) -> None:
        try:
            self.name, self._arguments = hermes_call(text)
        except ValueError as e:
            raise Malformed from e
