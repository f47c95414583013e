"""An answer's pieces as Anthropic's content blocks, and the events that tell a stream of them."""

import json
from collections.abc import Sequence
from typing import Any

from backburner.api.parsing.pieces import (
    ContentDelta,
    Piece,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

# Anthropic signs thoughts, to know them again. Ours need no proof, but clients send back none that are not signed.
SIGNATURE = "backburner"


class Blocks:
    """Blocks follow each other: one ends where a piece of another kind comes."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._open = False
        self._input_json = ""  # of the open block, if it is a call

    def take(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """The events of more pieces."""
        events: list[dict[str, Any]] = []
        for piece in pieces:
            match piece:
                case ReasoningDelta(text):
                    events += self._go_on({"type": "thinking", "thinking": "", "signature": ""})
                    self._blocks[-1]["thinking"] += text
                    events.append(self._delta({"type": "thinking_delta", "thinking": text}))
                case ContentDelta(text):
                    events += self._go_on({"type": "text", "text": ""})
                    self._blocks[-1]["text"] += text
                    events.append(self._delta({"type": "text_delta", "text": text}))
                case ToolCallStart(_, id, name):
                    events += self.close()
                    events.append(self._start({"type": "tool_use", "id": id, "name": name, "input": {}}))
                    self._input_json = ""
                case ToolCallArguments(_, json_text):
                    self._input_json += json_text
                    events.append(self._delta({"type": "input_json_delta", "partial_json": json_text}))
        return events

    def close(self) -> list[dict[str, Any]]:
        """The events that end the open block, if there is one."""
        if not self._open:
            return []
        self._open = False
        events: list[dict[str, Any]] = []
        block = self._blocks[-1]
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            events.append(self._delta({"type": "signature_delta", "signature": SIGNATURE}))
        elif block["type"] == "tool_use":
            block["input"] = json.loads(self._input_json or "{}")
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def whole(self) -> list[dict[str, Any]]:
        return self._blocks

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _go_on(self, empty: dict[str, Any]) -> list[dict[str, Any]]:
        if self._open and self._blocks[-1]["type"] == empty["type"]:
            return []
        return [*self.close(), self._start(empty)]

    def _start(self, empty: dict[str, Any]) -> dict[str, Any]:
        self._blocks.append(dict(empty))
        self._open = True
        return {"type": "content_block_start", "index": self._index, "content_block": empty}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
