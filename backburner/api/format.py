"""How answers look in JSON: what chat and text completions share, and the protocol each implements."""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from starlette.responses import Response

from backburner.api.errors import ApiError, error_response
from backburner.engine.request import Delta, Finished, GenerationRequest, PromptLogprobs


def new_id(prefix: str, separator: str = "-") -> str:
    return f"{prefix}{separator}{uuid.uuid4().hex}"


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


def counted(requests: Sequence[GenerationRequest], index: int, finished: Finished) -> Finished:
    """What the choice adds to the usage: a prompt counts once, however many choices it has, as OpenAI counts."""
    if index and requests[index].prompt is requests[index - 1].prompt:
        return replace(finished, prompt_tokens=0, cached_tokens=0)
    return finished


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


class Choice(Protocol):
    """One answer on its way: events in, frames' JSON out, and the whole of it at the end.

    A whole answer goes through the same object as a streamed one, so that both say the same.
    """

    def opening(self) -> Iterable[dict[str, Any]]:
        """Before the first event with content."""
        ...

    def prompt(self, event: PromptLogprobs) -> Iterable[dict[str, Any]]: ...

    def delta(self, event: Delta) -> Iterable[dict[str, Any]]: ...

    def closing(self, event: Finished) -> Iterable[dict[str, Any]]: ...

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that was not streamed; after `closing`."""
        ...


class Format(Protocol):
    """One kind of answer, whole or in chunks."""

    def beginning(self) -> Iterable[dict[str, Any]]:
        """What a stream sends at once, while its request is queued."""
        ...

    def choice(self, index: int, *, keeps: bool) -> Choice:
        """keeps: for an answer that is not streamed; only then its `whole` is asked for."""
        ...

    def ending(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """What follows the last choice of a stream."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]: ...

    def frame(self, value: dict[str, Any]) -> bytes:
        """One server-sent event."""
        ...

    def error_frame(self, error: ApiError) -> bytes:
        """The last event of a stream that failed."""
        ...

    def refusal(self, error: ApiError) -> Response:
        """The answer when nothing was sent yet."""
        ...

    @property
    def done(self) -> bytes:
        """The last bytes of a stream that went well."""
        ...

    @property
    def keep_alive(self) -> bytes | None:
        """What to send when there is nothing to say; None: a comment."""
        ...


@dataclass(slots=True)
class ChoicesFormat:
    """What a Format of OpenAI's older endpoints is but for its choices: unnamed events, [DONE] at the end."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    done: ClassVar[bytes] = b"data: [DONE]\n\n"
    keep_alive: ClassVar[bytes | None] = None

    envelope: Envelope
    includes_usage: bool

    def beginning(self) -> Iterable[dict[str, Any]]:
        return ()

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A choice's JSON in its envelope."""
        return self.envelope.chunk(self.chunk_kind, choice, self.includes_usage)

    def ending(self, usage: Usage) -> Iterable[dict[str, Any]]:
        if self.includes_usage:
            yield self.envelope.usage_chunk(self.chunk_kind, usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self.envelope.whole(self.whole_kind, [choice.whole() for choice in choices], usage)

    def frame(self, value: dict[str, Any]) -> bytes:
        return data_frame(value)

    def error_frame(self, error: ApiError) -> bytes:
        return data_frame(error.body())

    def refusal(self, error: ApiError) -> Response:
        return error_response(error)


def data_frame(value: dict[str, Any], event: str | None = None) -> bytes:
    """One server-sent event, with a name if `event` gives one."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
