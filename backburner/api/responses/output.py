"""Output items, grown piece by piece, and the events that tell of each step."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from backburner.api.format import new_id
from backburner.api.parsing.pieces import (
    ContentDelta,
    Piece,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from backburner.api.responses.thoughts import pack_thoughts

Event = dict[str, Any]  # without its sequence_number, which it gets when it is sent
Status = Literal["in_progress", "completed", "incomplete"]
Kind = Literal["reasoning", "message", "function_call"]

PREFIXES: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class Item:
    """One item; its text is that of its only part, or the arguments of a call."""

    def __init__(self, kind: Kind, index: int, call_id: str = "", name: str = "") -> None:
        self.kind: Kind = kind
        self._texts: list[str] = []
        self.scores: list[dict[str, Any]] = []
        self.status: Status = "in_progress"
        self._id = new_id(PREFIXES[kind], "_")
        self._index = index
        self._call_id = call_id
        self._name = name

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def json(self, status: Status, packs_thoughts: bool = False) -> dict[str, Any]:
        head = {"id": self._id, "type": self.kind, "status": status}
        parts = [] if status == "in_progress" else [self._part()]
        match self.kind:
            case "reasoning":
                packed = {"encrypted_content": pack_thoughts(self.text)} if packs_thoughts else {}
                return {**head, "summary": [], "content": parts, **packed}
            case "message":
                return {**head, "role": "assistant", "content": parts}
            case "function_call":
                return {**head, "call_id": self._call_id, "name": self._name, "arguments": self.text}

    def opening(self) -> Iterator[Event]:
        item = self.json("in_progress")
        yield {"type": "response.output_item.added", "output_index": self._index, "item": item}
        if self.kind != "function_call":
            yield self._in_part("response.content_part.added", part=self._part())

    def more(self, text: str, scores: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        self._texts.append(text)
        self.scores += scores
        match self.kind:
            case "reasoning":
                yield self._in_part("response.reasoning_text.delta", delta=text)
            case "message":
                yield self._in_part("response.output_text.delta", delta=text, logprobs=list(scores))
            case "function_call":
                yield self._in_item("response.function_call_arguments.delta", delta=text)

    def closing(self, status: Status, packs_thoughts: bool) -> Iterator[Event]:
        self.status = status
        match self.kind:
            case "reasoning":
                yield self._in_part("response.reasoning_text.done", text=self.text)
            case "message":
                yield self._in_part("response.output_text.done", text=self.text, logprobs=self.scores)
            case "function_call":
                yield self._in_item(
                    "response.function_call_arguments.done", name=self._name, arguments=self.text
                )
        if self.kind != "function_call":
            yield self._in_part("response.content_part.done", part=self._part())
        item = self.json(status, packs_thoughts)
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}

    def _part(self) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        # A copy: it may be sent after more was added.
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.scores)}

    def _in_item(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self._id, "output_index": self._index, **fields}

    def _in_part(self, kind: str, **fields: Any) -> Event:
        return self._in_item(kind, content_index=0, **fields)


class Output:
    """The items of one answer. Only the last can be open."""

    def __init__(self, packs_thoughts: bool) -> None:
        self._packs_thoughts = packs_thoughts
        self._items: list[Item] = []
        self._scores: list[dict[str, Any]] = []  # of text that was not sent with them

    def score(self, scores: Sequence[dict[str, Any]]) -> None:
        """The logprobs of the next piece, or of the message that it ends."""
        self._scores += scores

    def take(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case ReasoningDelta(text):
                yield from self._enter("reasoning")
                yield from self._items[-1].more(text)
            case ContentDelta(text):
                yield from self._enter("message")
                scores, self._scores = self._scores, []
                yield from self._items[-1].more(text, scores)
            case ToolCallStart(_, call_id, name):
                yield from self._close()
                yield from self._open(Item("function_call", len(self._items), call_id, name))
            case ToolCallArguments(_, json_text):
                yield from self._items[-1].more(json_text)

    def finish(self, status: Status) -> Iterator[Event]:
        """An answer that is complete has a message or a call: clients look for one, even if nothing was said."""
        if status == "completed" and all(item.kind == "reasoning" for item in self._items):
            yield from self._enter("message")
        yield from self._close(status)

    def json(self) -> list[dict[str, Any]]:
        """Every item, as far as it came."""
        return [
            item.json("incomplete" if item.status == "in_progress" else item.status, self._packs_thoughts)
            for item in self._items
        ]

    def _enter(self, kind: Kind) -> Iterator[Event]:
        if not (self._items and self._items[-1].kind == kind and self._items[-1].status == "in_progress"):
            yield from self._close()
            yield from self._open(Item(kind, len(self._items)))

    def _open(self, item: Item) -> Iterator[Event]:
        self._items.append(item)
        yield from item.opening()

    def _close(self, status: Status = "completed") -> Iterator[Event]:
        if self._items and self._items[-1].status == "in_progress":
            if self._items[-1].kind == "message":
                self._items[-1].scores += self._scores
                self._scores = []
            # Calls are held back until they are whole.
            whole = self._items[-1].kind == "function_call"
            yield from self._items[-1].closing("completed" if whole else status, self._packs_thoughts)
