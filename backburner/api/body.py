"""Request bodies: read with a cap, parsed strictly, so that nothing odd reaches the routes."""

import asyncio
import json
import math
from typing import Any, NoReturn

from fastapi import Request
from starlette.requests import ClientDisconnect

from backburner.api.errors import NO_RETRY, ApiError, InvalidRequestError

# Deep enough for any real tool schema; far below the depth at which parsers and templates overflow the stack.
MAX_JSON_DEPTH = 100


async def read_body(request: Request, max_bytes: int, idle_s: float) -> bytes:
    """The whole body. Refuses what is too large before and while it comes in."""
    content_type = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(
            415,
            f"content-type is {content_type!r}; send the header 'Content-Type: application/json'",
            code="unsupported_media_type",
        )
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    stream = request.stream().__aiter__()
    try:
        while True:
            async with asyncio.timeout(idle_s):
                chunk = await anext(stream, None)
            if chunk is None:
                return b"".join(chunks)
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
    except TimeoutError as e:
        raise ApiError(408, f"no more of the body came for {idle_s:g} s", headers=NO_RETRY) from e
    except ClientDisconnect as e:
        raise ApiError(400, "the client left before the body was complete", headers=NO_RETRY) from e


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body."""
    try:
        value = strict_json(body.decode())
    except UnicodeDecodeError as e:
        raise InvalidRequestError(
            f"the body is not UTF-8: {e.reason} at byte {e.start}", code="invalid_json"
        ) from e
    except ValueError as e:
        raise InvalidRequestError(f"the body is not valid JSON: {e}", code="invalid_json") from e
    if not isinstance(value, dict):
        raise InvalidRequestError("the body has to be a JSON object", code="invalid_json")
    return value


def strict_json(text: str) -> Any:
    """JSON without Python's extensions and without what cannot be processed further. Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as e:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels") from e
    if _deeper_than(value, MAX_JSON_DEPTH):
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels")
    # Only an escape can smuggle in a lone surrogate: decoding the bytes would have refused it.
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as e:
            raise ValueError("a string has half of a surrogate pair, which is not a character") from e
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return value


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            child
            for node in layer
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return False
    return True


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
