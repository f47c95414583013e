"""POST /tokenize, /detokenize and /apply-template, as llama-server and vLLM have them: text, tokens, prompts."""

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import model_validator

from backburner.api.body import parse_object, read_body
from backburner.api.errors import InvalidRequestError
from backburner.api.prompt import validated
from backburner.api.schemas import ChatBody, ModelBody
from backburner.api.settings import Api
from backburner.api.turn import chat_turn
from backburner.engine.text import token_bytes


class TokenizeBody(ModelBody):
    """`content` is llama-server's, `prompt` vLLM's; with `messages` the body is a chat's."""

    content: str | None = None
    prompt: str | None = None
    messages: Any = None
    add_special: bool | None = None  # llama-server's; without it there are none
    add_special_tokens: bool | None = None  # vLLM's; without it there are
    with_pieces: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> "TokenizeBody":
        given = [name for name in ("content", "prompt", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                "one of content, prompt and messages is required"
                if not given
                else f"{' and '.join(given)} exclude each other",
                param=given[1] if given else "content",
            )
        return self


class DetokenizeBody(ModelBody):
    tokens: list[int]


async def tokenize(api: Api, request: Request) -> Response:
    return await _answered(api, request, _tokenize)


async def detokenize(api: Api, request: Request) -> Response:
    return await _answered(api, request, _detokenize)


async def apply_template(api: Api, request: Request) -> Response:
    return await _answered(api, request, _apply_template)


async def _answered(
    api: Api, request: Request, work: Callable[[Api, dict[str, Any]], dict[str, Any]]
) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    # Megabytes of text take seconds, and so does their JSON; other clients must not wait for them.
    return await api.threads.look(request.receive, lambda: JSONResponse(work(api, parse_object(raw))))


def _tokenize(api: Api, fields: dict[str, Any]) -> dict[str, Any]:
    body = validated(api, fields, TokenizeBody)
    if body.messages is not None:
        tokens = api.tokenizer.encode(_rendered(api, fields), add_special_tokens=False)
    elif body.prompt is not None:
        tokens = api.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        tokens = api.tokenizer.encode(body.content or "", add_special_tokens=bool(body.add_special))
    answer: dict[str, Any] = {
        "tokens": [{"id": t, "piece": _piece(api, t)} for t in tokens] if body.with_pieces else tokens,
        "count": len(tokens),
        "max_model_len": api.effective_ctx_size(),
    }
    if body.return_token_strs:
        answer["token_strs"] = [token_bytes(api.tokenizer, t).decode(errors="replace") for t in tokens]
    return answer


def _piece(api: Api, token: int) -> str | list[int]:
    """A token's text; its bytes where they are only part of a character."""
    piece = token_bytes(api.tokenizer, token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _detokenize(api: Api, fields: dict[str, Any]) -> dict[str, Any]:
    body = validated(api, fields, DetokenizeBody)
    vocabulary = len(api.tokenizer)
    if any(not 0 <= token < vocabulary for token in body.tokens):
        raise InvalidRequestError(f"a token id is outside [0, {vocabulary})", param="tokens")
    text = api.tokenizer.decode(body.tokens) if body.tokens else ""
    return {"content": text, "prompt": text}  # llama-server's name and vLLM's


def _apply_template(api: Api, fields: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": _rendered(api, fields)}


def _rendered(api: Api, fields: dict[str, Any]) -> str:
    """What the model would be given for the same chat request."""
    body = validated(api, fields, ChatBody)
    return chat_turn(api, body).text
