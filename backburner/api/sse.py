"""Server-sent events: frames, keep-alives by wall clock, and an end that is honest about failures."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backburner.api.disconnect import unless_disconnected
from backburner.api.errors import from_engine, internal_error
from backburner.api.format import Choice, Format, Usage, counted
from backburner.api.reply import Reply
from backburner.api.settings import Api
from backburner.engine.request import Delta, Finished, GenerationRequest, Progress, PromptLogprobs
from backburner.errors import BackburnerError

log = logging.getLogger(__name__)


def comment_frame(progress: Progress | None) -> bytes:
    """Keeps clients and proxies from idling out; parsers skip it."""
    text = f"prefill {progress.done}/{progress.total}" if progress else "keep-alive"
    return f": {text}\n\n".encode()


class SseResponse(Response):
    """Streams the answers of `requests`, one after the other, as choices of one `kind`."""

    def __init__(self, api: Api, requests: Sequence[GenerationRequest], kind: Format) -> None:
        # x-accel-buffering: nginx would otherwise collect the stream.
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._api = api
        self._requests = requests
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = Reply(self._api, self._requests[0])
        except BackburnerError as e:
            # Nothing has been sent yet: the client can still have a real status.
            await self._kind.refusal(from_engine(e))(scope, receive, send)
            return
        with first:
            await unless_disconnected(receive, self._send_all(first, send))

    async def _send_all(self, first: Reply, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames(first)) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self, first: Reply) -> AsyncGenerator[bytes, None]:
        kind, usage = self._kind, Usage()
        try:
            for value in kind.beginning():
                yield kind.frame(value)
            for index, request in enumerate(self._requests):
                with first if index == 0 else Reply(self._api, request, further=True) as reply:
                    async with aclosing(self._choice(kind.choice(index, keeps=False), reply)) as frames:
                        async for frame in frames:
                            if isinstance(frame, Finished):
                                usage = usage.plus(counted(self._requests, index, frame))
                            else:
                                yield frame
            for value in kind.ending(usage):
                yield kind.frame(value)
        # After a failure there is no finish_reason and no [DONE]: a client must not take this for an answer.
        except BackburnerError as e:
            log.warning("%s failed: %s", self._requests[0].request_id, e)
            yield kind.error_frame(from_engine(e))
            return
        except Exception:
            log.exception("%s failed", self._requests[0].request_id)
            yield kind.error_frame(internal_error())
            return
        yield kind.done

    async def _choice(self, choice: Choice, reply: Reply) -> AsyncGenerator[bytes | Finished, None]:
        """The frames of one choice; the last item is its Finished."""
        kind = self._kind
        keep_alive_s = self._api.settings.keep_alive_s
        clock = asyncio.get_running_loop().time
        sent_at = clock()
        progress: Progress | None = None
        opened = False
        while True:
            event = await reply.next(max(0.0, sent_at + keep_alive_s - clock()))
            if isinstance(event, Progress):
                progress = event  # told at the next tick; a frame for each ubatch would be noise
                if clock() < sent_at + keep_alive_s:
                    continue
                event = None
            if event is None:
                yield kind.keep_alive or comment_frame(None if opened else progress)
                sent_at = clock()
                continue
            frames: list[dict[str, Any]] = []
            if not opened:
                opened = True
                frames += choice.opening()
            match event:
                case Delta():
                    frames += choice.delta(event)
                case PromptLogprobs():
                    frames += choice.prompt(event)
                case Finished():
                    frames += choice.closing(event)
            # Text may be held back until it is clear what it is; silence must not last longer than the keep-alive.
            for value in frames:
                yield kind.frame(value)
                sent_at = clock()
            if isinstance(event, Finished):
                yield event
                return
            if clock() >= sent_at + keep_alive_s:
                yield kind.keep_alive or comment_frame(None)
                sent_at = clock()
