"""POST /v1/chat/completions: a conversation in, the assistant's turn out."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from pydantic import ValidationError

from backburner.api.answer import respond
from backburner.api.body import parse_object, read_body
from backburner.api.errors import from_validation
from backburner.api.format import Envelope, Usage
from backburner.api.prompt import chat_prompt, check_model, generation_request
from backburner.api.reply import Answer
from backburner.api.schemas import ChatBody, refuse_unsupported
from backburner.api.settings import Api
from backburner.engine.request import FinishReason, GenerationRequest

WHOLE = "chat.completion"
CHUNK = "chat.completion.chunk"


async def chat_completions(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    envelope = Envelope.new("chatcmpl", api.settings.model_id)
    # Parsing, rendering and tokenising a long prompt takes seconds; other clients must not wait for it.
    body, generation = await asyncio.to_thread(_prepare, api, raw, envelope.id)
    return await respond(api, request, body, [generation], ChatFormat(envelope))


def _prepare(api: Api, raw: bytes, request_id: str) -> tuple[ChatBody, GenerationRequest]:
    fields = parse_object(raw)
    refuse_unsupported(fields)
    try:
        body = ChatBody.model_validate(fields)
    except ValidationError as e:
        raise from_validation(e) from e
    check_model(api.settings, body.model)
    max_tokens = body.max_completion_tokens or body.max_tokens
    prompt = chat_prompt(api, body)
    return body, generation_request(api, body, request_id, prompt, max_tokens, "messages")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    envelope: Envelope

    def opening_chunks(self, index: int, includes_usage: bool) -> Iterable[dict[str, Any]]:
        yield self._chunk(index, {"role": "assistant", "content": ""}, None, includes_usage)

    def text_chunk(self, index: int, text: str, includes_usage: bool) -> dict[str, Any]:
        return self._chunk(index, {"content": text}, None, includes_usage)

    def closing_chunk(self, index: int, reason: FinishReason, includes_usage: bool) -> dict[str, Any]:
        return self._chunk(index, {}, reason, includes_usage)

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return self.envelope.usage_chunk(CHUNK, usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text},
                "logprobs": None,
                "finish_reason": answer.finished.reason,
            }
            for index, answer in enumerate(answers)
        ]
        return self.envelope.whole(WHOLE, choices, usage)

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: FinishReason | None, includes_usage: bool
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.envelope.chunk(CHUNK, choice, includes_usage)
