"""A message in Anthropic's JSON: whole, or as the named events of a stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from backburner.api.errors import ApiError
from backburner.api.format import Choice, Usage, data_frame
from backburner.api.messages.content import Blocks
from backburner.api.messages.errors import anthropic_response, error_body
from backburner.api.messages.identity import new_tool_use_id
from backburner.api.turn import Turn
from backburner.engine.request import Delta, Finished, PromptLogprobs


@dataclass(frozen=True, slots=True)
class Head:
    """What is known before the answer."""

    id: str
    request_id: str
    model: str
    turn: Turn
    prompt_tokens: int
    max_tokens: int  # as the client asked; the context may end before

    def message(self, content: Sequence[Any], end: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **end,
            "usage": usage,
        }


class MessageChoice:
    """The one answer: its text parsed into thoughts, text and calls, and those into blocks."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._parser = head.turn.parser(new_tool_use_id)
        self._blocks = Blocks()
        self._finished: Finished | None = None

    def opening(self) -> Iterable[dict[str, Any]]:
        return ()

    def prompt(self, event: PromptLogprobs) -> Iterable[dict[str, Any]]:
        return ()

    def delta(self, event: Delta) -> Iterable[dict[str, Any]]:
        return self._blocks.take(self._parser.feed(event.text))

    def closing(self, event: Finished) -> Iterable[dict[str, Any]]:
        self._finished = event
        yield from self._blocks.take(self._parser.finish(event.cut))
        yield from self._blocks.close()
        yield {"type": "message_delta", "delta": self._end(event), "usage": usage_json(event)}

    def whole(self) -> dict[str, Any]:
        assert self._finished is not None
        return self._head.message(self._blocks.whole(), self._end(self._finished), usage_json(self._finished))

    def _end(self, finished: Finished) -> dict[str, Any]:
        reason = stop_reason(finished, self._parser.calls_sent, self._head.max_tokens)
        return {
            "stop_reason": reason,
            "stop_sequence": finished.stop if reason == "stop_sequence" else None,
            "stop_details": None,
        }


def stop_reason(finished: Finished, calls: int, max_tokens: int) -> str:
    if finished.reason == "length":
        cut = finished.completion_tokens < max_tokens
        return "model_context_window_exceeded" if cut else "max_tokens"
    if calls:
        return "tool_use"
    return "end_turn" if finished.stop is None else "stop_sequence"


def usage_json(finished: Finished) -> dict[str, int]:
    """Anthropic counts what was found cached apart from the input. Nobody pays for what is kept: 0 created."""
    return {
        "input_tokens": finished.prompt_tokens - finished.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": finished.cached_tokens,
        "output_tokens": finished.completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class MessagesFormat:
    head: Head

    def beginning(self) -> Iterable[dict[str, Any]]:
        # What is found cached is known at the end only; message_delta has the true counts.
        usage = usage_json(Finished("stop", self.head.prompt_tokens, 0))
        end = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
        yield {"type": "message_start", "message": self.head.message([], end, usage)}

    def choice(self, index: int, *, keeps: bool) -> Choice:
        return MessageChoice(self.head)

    def ending(self, usage: Usage) -> Iterable[dict[str, Any]]:
        return ()

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return choices[0].whole()

    def frame(self, value: dict[str, Any]) -> bytes:
        return data_frame(value, value["type"])

    def error_frame(self, error: ApiError) -> bytes:
        return self.frame(error_body(error, self.head.request_id))

    def refusal(self, error: ApiError) -> Response:
        return anthropic_response(error)

    @property
    def done(self) -> bytes:
        return self.frame({"type": "message_stop"})

    @property
    def keep_alive(self) -> bytes | None:
        return self.frame({"type": "ping"})
