"""POST /v1/completions: raw prompts in, their continuations out."""

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
from backburner.api.prompt import check_model, completion_prompts, generation_request
from backburner.api.reply import Answer
from backburner.api.schemas import CompletionBody, refuse_unsupported
from backburner.api.settings import Api
from backburner.engine.request import FinishReason, GenerationRequest

KIND = "text_completion"  # of whole answers and chunks alike


async def completions(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    envelope = Envelope.new("cmpl", api.settings.model_id)
    body, generations = await asyncio.to_thread(_prepare, api, raw, envelope.id)
    return await respond(api, request, body, generations, CompletionFormat(envelope))


def _prepare(api: Api, raw: bytes, request_id: str) -> tuple[CompletionBody, list[GenerationRequest]]:
    fields = parse_object(raw)
    refuse_unsupported(fields, legacy_logprobs=True)
    try:
        body = CompletionBody.model_validate(fields)
    except ValidationError as e:
        raise from_validation(e) from e
    check_model(api.settings, body.model)
    return body, [
        generation_request(api, body, f"{request_id}-{i}", prompt, body.max_tokens, "prompt")
        for i, prompt in enumerate(completion_prompts(api, body))
    ]


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    envelope: Envelope

    def opening_chunks(self, index: int, includes_usage: bool) -> Iterable[dict[str, Any]]:
        return ()

    def text_chunk(self, index: int, text: str, includes_usage: bool) -> dict[str, Any]:
        return self.envelope.chunk(KIND, _choice(index, text, None), includes_usage)

    def closing_chunk(self, index: int, reason: FinishReason, includes_usage: bool) -> dict[str, Any]:
        return self.envelope.chunk(KIND, _choice(index, "", reason), includes_usage)

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return self.envelope.usage_chunk(KIND, usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        choices = [_choice(i, answer.text, answer.finished.reason) for i, answer in enumerate(answers)]
        return self.envelope.whole(KIND, choices, usage)


def _choice(index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
