"""A Responses answer, whole and as numbered events."""

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

from backburner.api.errors import ApiError, error_response
from backburner.api.format import Choice, Usage, data_frame
from backburner.api.logprobs import ContentTokens, chat_logprobs
from backburner.api.parsing.pieces import Piece
from backburner.api.parsing.thinking import ThinkingSplitter
from backburner.api.responses.envelope import ResponseEnvelope, usage_json
from backburner.api.responses.output import Event, Output
from backburner.api.turn import Turn
from backburner.engine.request import Delta, Finished, FinishReason, PromptLogprobs, TokenLogprob


class ResponseChoice:
    """The only answer of a response."""

    def __init__(self, turn: Turn, logprobs: bool, packs_thoughts: bool) -> None:
        self.output = Output(packs_thoughts)
        self.reason: FinishReason = "stop"
        self.thought_tokens = 0
        self._thinking = ThinkingSplitter(turn.thinking)  # for counting: it takes one token after the other
        self._parser = turn.parser()
        self._logprobs = ContentTokens() if logprobs else None

    def opening(self) -> Iterable[Event]:
        return ()

    def prompt(self, event: PromptLogprobs) -> Iterable[Event]:
        return ()

    def delta(self, event: Delta) -> Iterable[Event]:
        start = 0
        for end in event.ends:
            self.thought_tokens += self._thinking.thinks
            self._thinking.feed(event.text[start:end])
            start = end
        return self._send(self._parser.feed(event.text), event.logprobs)

    def closing(self, event: Finished) -> Iterable[Event]:
        self.reason = event.reason
        events = self._send(self._parser.finish(event.cut))
        if self._logprobs is not None:
            self.output.score(chat_logprobs(self._logprobs.finish()))
        return [*events, *self.output.finish("incomplete" if event.reason == "length" else "completed")]

    def whole(self) -> dict[str, Any]:
        return {"output": self.output.json()}

    def _send(self, pieces: Sequence[Piece], tokens: Sequence[TokenLogprob] = ()) -> list[Event]:
        if self._logprobs is None:
            return [event for piece in pieces for event in self.output.take(piece)]
        events: list[Event] = []
        for piece, scores in self._logprobs.take(tokens, pieces):
            self.output.score(chat_logprobs(scores))
            events += self.output.take(piece)
        return events


class ResponsesFormat:
    """Every frame is numbered as it is sent, keep-alives too."""

    done = b""  # the last event says it all

    def __init__(self, envelope: ResponseEnvelope, turn: Turn) -> None:
        body = envelope.body
        self._envelope = envelope
        self._answer = ResponseChoice(turn, body.logprobs_wanted is not None, body.wants_thoughts_back)
        self._sent = 0

    def beginning(self) -> Iterable[Event]:
        response = self._envelope.in_progress()
        yield {"type": "response.created", "response": response}
        yield {"type": "response.in_progress", "response": response}

    def choice(self, index: int, *, keeps: bool) -> Choice:
        assert index == 0
        return self._answer

    def ending(self, usage: Usage) -> Iterable[Event]:
        response = self._response(usage)
        yield {"type": f"response.{response['status']}", "response": response}

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._response(usage)

    def frame(self, value: Event) -> bytes:
        numbered = {"type": value["type"], "sequence_number": self._sent, **value}
        self._sent += 1
        return data_frame(numbered, value["type"])

    def error_frame(self, error: ApiError) -> bytes:
        response = self._envelope.failed(error, self._answer.output.json())
        return self.frame({"type": "response.failed", "response": response})

    def refusal(self, error: ApiError) -> Response:
        return error_response(error)

    @property
    def keep_alive(self) -> bytes:
        # Agents count the seconds between events, and comments are none to them.
        return self.frame({"type": "response.in_progress", "response": self._envelope.in_progress()})

    def _response(self, usage: Usage) -> dict[str, Any]:
        answer = self._answer
        return self._envelope.finished(
            answer.reason, answer.output.json(), usage_json(usage, answer.thought_tokens)
        )
