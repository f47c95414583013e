"""How answers look in JSON: what chat and text completions share, and the protocol each implements."""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backburner.api.reply import Answer
from backburner.engine.request import Finished, FinishReason


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens counted over all choices of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def plus(self, finished: Finished) -> "Usage":
        return Usage(
            self.prompt_tokens + finished.prompt_tokens,
            self.completion_tokens + finished.completion_tokens,
            self.cached_tokens + finished.cached_tokens,
        )

    def json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields around `choices`, the same in every chunk of one answer."""

    id: str
    model: str
    created_s: int

    @classmethod
    def new(cls, prefix: str, model: str) -> "Envelope":
        return cls(new_id(prefix), model, int(time.time()))

    def whole(self, kind: str, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head(kind), "choices": choices, "usage": usage.json()}

    def chunk(self, kind: str, choice: dict[str, Any], includes_usage: bool) -> dict[str, Any]:
        # With include_usage, OpenAI sends a null usage in every chunk but the last.
        return {**self._head(kind), "choices": [choice], **({"usage": None} if includes_usage else {})}

    def usage_chunk(self, kind: str, usage: Usage) -> dict[str, Any]:
        return {**self._head(kind), "choices": [], "usage": usage.json()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


class Format(Protocol):
    """One kind of answer, whole or in chunks. Parsing of thoughts and tool calls belongs behind this."""

    def opening_chunks(self, index: int, includes_usage: bool) -> Iterable[dict[str, Any]]: ...

    def text_chunk(self, index: int, text: str, includes_usage: bool) -> dict[str, Any]: ...

    def closing_chunk(self, index: int, reason: FinishReason, includes_usage: bool) -> dict[str, Any]: ...

    def usage_chunk(self, usage: Usage) -> dict[str, Any]: ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]: ...
