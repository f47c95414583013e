"""POST /v1/chat/completions: a conversation in, the assistant's turn out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import Request, Response

from backburner.api.answer import respond
from backburner.api.body import parse_object, read_body
from backburner.api.format import Choice, ChoicesFormat, Envelope
from backburner.api.logprobs import ContentTokens, chat_logprobs
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.pieces import (
    ContentDelta,
    Message,
    Piece,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    join,
)
from backburner.api.prompt import choices_of, validated
from backburner.api.schemas import ChatBody, refuse_unsupported
from backburner.api.settings import Api
from backburner.api.turn import Turn, chat_turn
from backburner.engine.request import Delta, Finished, GenerationRequest, PromptLogprobs, TokenLogprob


async def chat_completions(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    envelope = Envelope.new("chatcmpl", api.settings.model_id)
    # Parsing, rendering and tokenising a long prompt takes seconds; other clients must not wait for it.
    body, turn, generations = await api.threads.prepare(request.receive, _prepare, api, raw, envelope.id)
    kind = ChatFormat(envelope, body.includes_usage, turn, bool(body.logprobs))
    return await respond(api, request, bool(body.stream), generations, kind)


def _prepare(api: Api, raw: bytes, request_id: str) -> tuple[ChatBody, Turn, list[GenerationRequest]]:
    fields = parse_object(raw)
    refuse_unsupported(fields)
    body = validated(api, fields, ChatBody)
    turn = chat_turn(api, body)
    return body, turn, choices_of(api, body, request_id, turn, body.n or 1)


def finish_reason(finished: Finished, calls: int) -> str:
    """An answer that ends with calls says so: clients drop calls beside `stop`."""
    return "tool_calls" if calls and finished.reason == "stop" else finished.reason


def message_json(message: Message) -> dict[str, Any]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in message.tool_calls
    ]
    result: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if calls:
        result["content"] = message.content or None
        result["tool_calls"] = calls
    return result


def piece_json(piece: Piece) -> dict[str, Any]:
    """The `delta` of a chunk."""
    match piece:
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ContentDelta(text):
            return {"content": text}
        case ToolCallStart(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case ToolCallArguments(index, json_text):
            return {"tool_calls": [{"index": index, "function": {"arguments": json_text}}]}


class ChatChoice:
    """One answer of a chat: its text parsed into thoughts, content and calls."""

    def __init__(
        self,
        index: int,
        parser: Parser,
        logprobs: bool,
        chunk: Callable[[dict[str, Any]], dict[str, Any]],
        keeps: bool,
    ) -> None:
        """chunk: puts a choice's JSON into its envelope. keeps: what came, for `whole`."""
        self._index = index
        self._parser = parser
        self._logprobs = ContentTokens() if logprobs else None
        self._scores: list[TokenLogprob] = []  # of content that was not sent yet
        self._all_scores: list[TokenLogprob] = []
        self._chunk = chunk
        self._keeps = keeps
        self._pieces: list[Piece] = []
        self._finished: Finished | None = None

    def opening(self) -> Iterable[dict[str, Any]]:
        yield self._choice({"role": "assistant", "content": ""})

    def prompt(self, event: PromptLogprobs) -> Iterable[dict[str, Any]]:
        return ()

    def delta(self, event: Delta) -> Iterable[dict[str, Any]]:
        return self._send(self._parser.feed(event.text), event.logprobs)

    def closing(self, event: Finished) -> Iterable[dict[str, Any]]:
        self._finished = event
        yield from self._send(self._parser.finish(event.cut))
        if self._logprobs is not None:
            self._score(self._logprobs.finish())
        yield self._choice({}, finish_reason(event, self._parser.calls_sent))

    def whole(self) -> dict[str, Any]:
        assert self._finished is not None
        scores = None if self._logprobs is None else {"content": chat_logprobs(self._all_scores)}
        return {
            "index": self._index,
            "message": message_json(join(self._pieces)),
            "logprobs": scores,
            "finish_reason": finish_reason(self._finished, self._parser.calls_sent),
        }

    def _score(self, scores: Sequence[TokenLogprob]) -> None:
        self._scores += scores
        if self._keeps:
            self._all_scores += scores

    def _send(self, pieces: Sequence[Piece], tokens: Sequence[TokenLogprob] = ()) -> Iterable[dict[str, Any]]:
        if self._keeps:
            self._pieces += pieces
        if self._logprobs is None:
            return [self._choice(piece_json(piece)) for piece in pieces]
        chunks = []
        for piece, scores in self._logprobs.take(tokens, pieces):
            self._score(scores)
            chunks.append(self._choice(piece_json(piece)))
        return chunks

    def _choice(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        scores = None
        if self._logprobs is not None and self._scores and (delta.get("content") or reason):
            scores = {"content": chat_logprobs(self._scores)}
            self._scores = []
        choice = {"index": self._index, "delta": delta, "logprobs": scores, "finish_reason": reason}
        return self._chunk(choice)


@dataclass(slots=True)
class ChatFormat(ChoicesFormat):
    whole_kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"

    turn: Turn
    logprobs: bool

    def choice(self, index: int, *, keeps: bool) -> Choice:
        return ChatChoice(index, self.turn.parser(), self.logprobs, self.chunk, keeps)
