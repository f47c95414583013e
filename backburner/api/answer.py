"""Answers a prepared request, streamed or whole; a client that goes away ends the work."""

import json
from collections.abc import Sequence

from fastapi import Request, Response

from backburner.api.disconnect import client_left, unless_disconnected
from backburner.api.format import Choice, Format, Usage, counted
from backburner.api.reply import LIVENESS_S, Reply
from backburner.api.settings import Api
from backburner.api.sse import SseResponse
from backburner.engine.request import Delta, Finished, GenerationRequest, PromptLogprobs


async def respond(
    api: Api, request: Request, stream: bool, generations: Sequence[GenerationRequest], kind: Format
) -> Response:
    """Several generations are answered in turn, as choices 0, 1, ..."""
    if stream:
        return SseResponse(api, generations, kind)
    answered = await unless_disconnected(request.receive, _collect_all(api, generations, kind))
    if answered is None:
        raise client_left()
    choices, usage = answered
    text = json.dumps(kind.whole(choices, usage), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json")


async def _collect_all(
    api: Api, generations: Sequence[GenerationRequest], kind: Format
) -> tuple[list[Choice], Usage]:
    choices: list[Choice] = []
    usage = Usage()
    for index, generation in enumerate(generations):
        choice = kind.choice(index, keeps=True)
        with Reply(api, generation, further=index > 0) as reply:
            finished = await _collect(reply, choice)
        usage = usage.plus(counted(generations, index, finished))
        choices.append(choice)
    return choices, usage


async def _collect(reply: Reply, choice: Choice) -> Finished:
    """Feeds a choice as a stream would, and drops the frames."""
    list(choice.opening())
    while True:
        match await reply.next(LIVENESS_S):
            case Delta() as delta:
                list(choice.delta(delta))
            case PromptLogprobs() as scores:
                list(choice.prompt(scores))
            case Finished() as finished:
                list(choice.closing(finished))
                return finished
