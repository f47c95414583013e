"""The marks that Qwen models write around thoughts and tool calls, and how to wait for one that is cut."""

import re

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"

WHITESPACE = " \t\r\n"
_WHITESPACE = re.compile(f"[{WHITESPACE}]+")


def begun(text: str, *markers: str) -> int:
    """Where the tail of `text` starts that may become a marker; len(text) if none does.

    Markers start with a <, and hold no other.
    """
    last = text.rfind("<")
    return last if last >= 0 and may_become(text[last:], *markers) else len(text)


def may_become(text: str, *markers: str) -> bool:
    """Whether `text` is the beginning of a marker, so that more of it has to be seen."""
    return any(marker.startswith(text) for marker in markers)


def skip_whitespace(text: str, start: int) -> int:
    match = _WHITESPACE.match(text, start)
    return match.end() if match else start


def without_leading_blank_lines(text: str) -> str:
    """Keeps the indentation of the first line that says something."""
    said = skip_whitespace(text, 0)
    return text[text.rfind("\n", 0, said) + 1 :]
