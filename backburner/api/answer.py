"""Answers a prepared request, streamed or whole; a client that goes away ends the work."""

from collections.abc import Sequence

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from backburner.api.format import Format, Usage
from backburner.api.reply import Answer, Reply, unless_disconnected
from backburner.api.schemas import GenerationBody
from backburner.api.settings import Api
from backburner.api.sse import SseResponse
from backburner.engine.request import GenerationRequest

# nginx's "client closed request". Nobody receives it.
CLIENT_CLOSED_REQUEST = 499


async def respond(
    api: Api, request: Request, body: GenerationBody, generations: Sequence[GenerationRequest], kind: Format
) -> Response:
    if body.stream:
        return SseResponse(api, generations, kind, body.includes_usage)
    answers = await unless_disconnected(request.receive, _collect_all(api, generations))
    if answers is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    usage = Usage()
    for answer in answers:
        usage = usage.plus(answer.finished)
    return JSONResponse(kind.whole(answers, usage))


async def _collect_all(api: Api, generations: Sequence[GenerationRequest]) -> list[Answer]:
    answers: list[Answer] = []
    for generation in generations:
        with Reply(api, generation) as reply:
            answers.append(await reply.collect())
    return answers
