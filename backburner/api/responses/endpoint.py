"""POST /v1/responses: a list of items in, a list of items out. Nothing is kept."""

import time
from typing import Any

from fastapi import Request, Response

from backburner.api.answer import respond
from backburner.api.body import parse_object, read_body
from backburner.api.errors import ApiError
from backburner.api.format import new_id
from backburner.api.prompt import choices_of, validated
from backburner.api.responses.envelope import ResponseEnvelope
from backburner.api.responses.format import ResponsesFormat
from backburner.api.responses.items import messages_of
from backburner.api.responses.schemas import ResponsesBody, TextFormat, refuse_unkept
from backburner.api.schemas import ChatBody, GenerationBody, JsonSchema, ResponseFormat
from backburner.api.settings import Api
from backburner.api.turn import Turn, chat_turn
from backburner.engine.request import GenerationRequest

# What the fields of chat that an error may blame are called here.
OUR_NAMES = {"messages": "input", "response_format": "text.format"}


async def responses(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    response_id, created_s = new_id("resp", "_"), int(time.time())
    # Parsing, rendering and tokenising a long prompt takes seconds; other clients must not wait for it.
    body, turn, generation = await api.threads.prepare(request.receive, _prepare, api, raw, response_id)
    envelope = ResponseEnvelope(response_id, api.settings.model_id, created_s, body, generation.sampling)
    kind = ResponsesFormat(envelope, turn)
    return await respond(api, request, bool(body.stream), [generation], kind)


def stored_response(response_id: str) -> Response:
    """There is none: what was sent is all there ever was."""
    raise ApiError(
        404,
        f"no response {response_id[:100]!r}: this server does not store responses",
        code="not_found",
        param="response_id",
    )


def _prepare(api: Api, raw: bytes, response_id: str) -> tuple[ResponsesBody, Turn, GenerationRequest]:
    fields = parse_object(raw)
    refuse_unkept(fields)
    body = validated(api, fields, ResponsesBody)
    chat = as_chat(body)
    try:
        turn = chat_turn(api, chat)
        (generation,) = choices_of(api, chat, response_id, turn, 1)
    except ApiError as e:
        if e.param in OUR_NAMES:
            e.message = e.message.replace(e.param, OUR_NAMES[e.param])
            e.param = OUR_NAMES[e.param]
        raise
    return body, turn, generation


def as_chat(body: ResponsesBody) -> ChatBody:
    """The same request in the words of chat. All of its parts are validated already."""
    sampling: dict[str, Any] = {name: getattr(body, name) for name in GenerationBody.model_fields}
    choice = body.tool_choice
    return ChatBody.model_construct(
        **sampling,
        messages=messages_of(body.instructions, body.input),
        tools=[_chat_tool(tool) for tool in body.tools or ()],
        tool_choice={"type": "function", "function": choice} if isinstance(choice, dict) else choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=None if body.format is None else _chat_format(body.format),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.logprobs_wanted is not None,
        top_logprobs=body.top_logprobs,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": function}


def _chat_format(wanted: TextFormat) -> ResponseFormat:
    schema = None if wanted.text is None else JsonSchema.model_construct(text=wanted.text)
    return ResponseFormat.model_construct(type=wanted.type, json_schema=schema, object_schema=wanted.text)
