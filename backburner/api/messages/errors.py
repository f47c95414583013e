"""Errors as Anthropic's clients understand them."""

import json
from typing import Any

from starlette.responses import Response

from backburner.api.errors import ApiError, printable
from backburner.api.messages.identity import new_request_id
from backburner.errors import ContextExceeded

# Below it every answer has Anthropic's shape.
PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": printable(_message(error))},
        "request_id": request_id,
    }


def anthropic_response(error: ApiError) -> Response:
    request_id = new_request_id()
    return Response(
        json.dumps(error_body(error, request_id)),
        error.status,
        headers={**error.headers, "request-id": request_id},
        media_type="application/json",
    )


def _message(error: ApiError) -> str:
    if error.code != ContextExceeded.code:
        return error.message
    # Claude Code compacts the conversation when it reads this, and takes the numbers from it.
    if {"n_prompt_tokens", "n_ctx"} <= error.extra.keys():
        return f"prompt is too long: {error.extra['n_prompt_tokens']} tokens > {error.extra['n_ctx']} maximum"
    return f"prompt is too long: {error.message}"
