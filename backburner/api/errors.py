"""Errors as OpenAI clients understand them: one body shape, the right status, and whether to retry."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic import ValidationError

from backburner.errors import (
    BackburnerError,
    ContextExceeded,
    EngineDead,
    GrammarError,
    HostFull,
    QueueFull,
    RemoteError,
    TransportError,
    Unsupported,
)

log = logging.getLogger(__name__)

# Echoed input is cut here: enough to recognise it, never a way to make us send megabytes back.
MAX_MESSAGE_CHARACTERS = 1000

# The OpenAI client repeats 408, 409, 429 and 5xx twice unless told otherwise; each time costs a prefill.
NO_RETRY = {"x-should-retry": "false"}
# Long enough for the engine to restart, the worker to be given up or a short answer to end.
RETRY_LATER = {"retry-after": "5"}

_TYPES = {429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is answered with an error body. `message` is for the person who reads it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": printable(self.message),
                "type": _TYPES.get(
                    self.status, "invalid_request_error" if self.status < 500 else "server_error"
                ),
                "param": None if self.param is None else printable(self.param),
                "code": self.code,
                **self.extra,
            }
        }


class InvalidRequestError(ApiError):
    """400: the request can never succeed as it is."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(400, message, param=param, code=code)


def unsupported(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what} is not supported yet", param=param, code="unsupported_parameter")


def context_exceeded(prompt_tokens: int, ctx_size: int, param: str) -> ApiError:
    # Agents compact the conversation if they know the text: litellm, langchain and pi know this one.
    return ApiError(
        400,
        "context_length_exceeded: prompt is too long. "
        f"This model's maximum context length is {ctx_size} tokens; "
        f"the request ({prompt_tokens} tokens) exceeds the available context size",
        code="context_length_exceeded",
        param=param,
        extra={"n_prompt_tokens": prompt_tokens, "n_ctx": ctx_size},
    )


def from_engine(error: BackburnerError) -> ApiError:
    """What the client is told when the engine or the worker's link fails."""
    message = str(error) or error.__doc__ or error.code
    if isinstance(error, ContextExceeded | GrammarError | Unsupported):
        return ApiError(400, message, code=error.code)
    if isinstance(error, QueueFull):
        return ApiError(429, message, code=error.code, headers=RETRY_LATER)
    if isinstance(error, HostFull):
        return ApiError(503, message, code=error.code, headers=NO_RETRY)
    if isinstance(error, EngineDead | TransportError | RemoteError):
        return ApiError(503, message, code=error.code, headers=RETRY_LATER)
    return ApiError(500, message, code=error.code, headers=NO_RETRY)


def internal_error() -> ApiError:
    """A defect of ours. Details go to the log: a traceback may hold parts of someone's prompt."""
    return ApiError(500, "internal error; see the server's log", code="internal_error", headers=NO_RETRY)


def from_validation(error: ValidationError, within: tuple[int | str, ...] = ()) -> ApiError:
    """The first problem pydantic found, with the field that has it; `within`: where the checked part stands."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = param_name((*within, *first["loc"]))
    cause = first.get("ctx", {}).get("error")
    message = str(cause) if isinstance(cause, ValueError) else first["msg"]
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is required", param=param, code="missing_required_parameter")
    return InvalidRequestError(f"{param}: {message}" if param else message, param=param)


def param_name(location: tuple[int | str, ...]) -> str | None:
    """("messages", 0, "role") as messages[0].role"""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name or None


def error_response(error: ApiError) -> Response:
    return Response(
        json.dumps(error.body()), error.status, headers=error.headers, media_type="application/json"
    )


def printable(text: str) -> str:
    """A message as it may be sent: cut, and encodable even if it echoes lone surrogates."""
    return text[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
