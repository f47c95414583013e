"""What an answer is made of, piece by piece, and the pieces joined."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str
    start: int = field(default=0, compare=False)  # of the text in the answer, in characters


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments; the texts of one index joined are one JSON object."""

    index: int
    json_text: str


Piece = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class Message:
    """A whole answer. No thoughts, no content: empty strings."""

    reasoning: str
    content: str
    tool_calls: tuple[ToolCall, ...]


def join(pieces: Iterable[Piece]) -> Message:
    """The answer that a stream of pieces adds up to."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: dict[int, str] = {}
    for piece in pieces:
        match piece:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ToolCallStart():
                starts.append(piece)
            case ToolCallArguments(index, json_text):
                arguments[index] = arguments.get(index, "") + json_text
    calls = tuple(ToolCall(start.id, start.name, arguments.get(start.index, "")) for start in starts)
    return Message("".join(reasoning), "".join(content), calls)
