"""The Response object: what was asked, echoed as it was understood, around what came of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backburner.api.errors import ApiError
from backburner.api.format import Usage
from backburner.api.responses.schemas import ResponsesBody
from backburner.engine.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ResponseEnvelope:
    id: str
    model: str
    created_s: int
    body: ResponsesBody
    sampling: SamplingParams  # that were really used

    def in_progress(self) -> dict[str, Any]:
        return self._response("in_progress", [], None)

    def finished(
        self, reason: FinishReason, output: Sequence[dict[str, Any]], usage: dict[str, Any]
    ) -> dict[str, Any]:
        if reason == "length":
            details = {"reason": "max_output_tokens"}
            return self._response("incomplete", output, usage, incomplete_details=details)
        return self._response("completed", output, usage, completed_at=int(time.time()))

    def failed(self, error: ApiError, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return self._response("failed", output, None, error=error_json(error))

    def _response(
        self, status: str, output: Sequence[dict[str, Any]], usage: dict[str, Any] | None, **outcome: Any
    ) -> dict[str, Any]:
        body = self.body
        reasoning = body.reasoning
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": reasoning.effort if reasoning else None,
                "summary": reasoning.summary if reasoning else None,
            },
            "service_tier": "default",
            "store": False,
            "temperature": self.sampling.temperature,
            "text": {"format": _format_json(body)},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{"parameters": None, "strict": None, **tool} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self.sampling.top_p,
            "truncation": "disabled",
            "usage": usage,
            **outcome,
        }


def _format_json(body: ResponsesBody) -> dict[str, Any]:
    wanted = body.format
    if wanted is None:
        return {"type": "text"}
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name or "response",
        "schema": wanted.schema_object(),
        "strict": True,
    }


def usage_json(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        # Reading a prompt always fills the cache; there is no price on it that a client could want to know.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": min(reasoning_tokens, usage.completion_tokens)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_json(error: ApiError) -> dict[str, Any]:
    """The error of a response that failed. Its codes are OpenAI's few; ours is the `type`."""
    fields = error.body()["error"]
    code: str | None = "server_error"
    if error.status == 429:
        code = "rate_limit_exceeded"
    elif error.status < 500:
        # Agents compact the conversation on the first, and do not try again on the second.
        code = error.code if error.code == "context_length_exceeded" else "invalid_prompt"
    return {"code": code, "message": fields["message"], "param": fields["param"], "type": error.code}
