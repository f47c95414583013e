"""POST /v1/messages and /v1/messages/count_tokens."""

from typing import TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from backburner.api.answer import respond
from backburner.api.body import parse_object, read_body
from backburner.api.messages.conversation import as_chat
from backburner.api.messages.format import Head, MessagesFormat
from backburner.api.messages.identity import new_message_id, new_request_id
from backburner.api.messages.schemas import InputBody, MessagesBody, refuse_unkept
from backburner.api.prompt import choices_of, validated
from backburner.api.settings import Api
from backburner.api.turn import chat_turn
from backburner.engine.request import GenerationRequest

B = TypeVar("B", bound=InputBody)


async def create_message(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    # Parsing, rendering and tokenising a long prompt takes seconds; other clients must not wait for it.
    body, head, generation = await api.threads.prepare(request.receive, _prepare, api, raw)
    response = await respond(api, request, bool(body.stream), [generation], MessagesFormat(head))
    response.headers["request-id"] = head.request_id
    return response


async def count_tokens(api: Api, request: Request) -> Response:
    """How many tokens the same input would be as a message; it may be more than the context holds."""
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    count = await api.threads.look(request.receive, _count, api, raw)
    return JSONResponse({"input_tokens": count}, headers={"request-id": new_request_id()})


def _prepare(api: Api, raw: bytes) -> tuple[MessagesBody, Head, GenerationRequest]:
    body = _read(api, raw, MessagesBody)
    chat = as_chat(body)
    turn = chat_turn(api, chat)
    message_id = new_message_id()
    (generation,) = choices_of(api, chat, message_id, turn, 1)
    head = Head(
        message_id,
        new_request_id(),
        api.settings.model_id,
        turn,
        len(generation.prompt),
        body.max_tokens,
    )
    return body, head, generation


def _count(api: Api, raw: bytes) -> int:
    turn = chat_turn(api, as_chat(_read(api, raw, InputBody)))
    return len(api.tokenizer.encode(turn.text, add_special_tokens=False))


def _read(api: Api, raw: bytes, kind: type[B]) -> B:
    fields = parse_object(raw)
    refuse_unkept(fields)
    return validated(api, fields, kind)
