"""Server-sent events: frames, keep-alives by wall clock, and an end that is honest about failures."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backburner.api.errors import error_response, from_engine, internal_error
from backburner.api.format import Format, Usage
from backburner.api.reply import Reply, unless_disconnected
from backburner.api.settings import Api
from backburner.engine.request import Delta, Finished, GenerationRequest, Progress
from backburner.errors import BackburnerError

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def data_frame(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def comment_frame(progress: Progress | None) -> bytes:
    """Keeps clients and proxies from idling out; parsers skip it."""
    text = f"prefill {progress.done}/{progress.total}" if progress else "keep-alive"
    return f": {text}\n\n".encode()


class SseResponse(Response):
    """Streams the answers of `requests`, one after the other, as chunks of `chunks`."""

    def __init__(
        self, api: Api, requests: Sequence[GenerationRequest], chunks: Format, includes_usage: bool
    ) -> None:
        # x-accel-buffering: nginx would otherwise collect the stream.
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._api = api
        self._requests = requests
        self._chunks = chunks
        self._includes_usage = includes_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = Reply(self._api, self._requests[0])
        except BackburnerError as e:
            # Nothing has been sent yet: the client can still have a real status.
            await error_response(from_engine(e))(scope, receive, send)
            return
        with first:
            try:
                await unless_disconnected(receive, self._send_all(first, send))
            except TimeoutError:
                log.warning("%s: the client takes no data; cancelled", self._requests[0].request_id)

    async def _send_all(self, first: Reply, send: Send) -> None:
        async def write(frame: bytes, more: bool = True) -> None:
            async with asyncio.timeout(self._api.settings.write_stall_s):
                await send({"type": "http.response.body", "body": frame, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames(first)) as frames:
            async for frame in frames:
                await write(frame)
        await write(b"", more=False)

    async def _frames(self, first: Reply) -> AsyncGenerator[bytes, None]:
        usage = Usage()
        try:
            for index, request in enumerate(self._requests):
                with first if index == 0 else Reply(self._api, request) as reply:
                    async with aclosing(self._choice(index, reply)) as frames:
                        async for frame in frames:
                            if isinstance(frame, Finished):
                                usage = usage.plus(frame)
                            else:
                                yield frame
        # After a failure there is no finish_reason and no [DONE]: a client must not take this for an answer.
        except BackburnerError as e:
            log.warning("%s failed: %s", self._requests[0].request_id, e)
            yield data_frame(from_engine(e).body())
            return
        except Exception:
            log.exception("%s failed", self._requests[0].request_id)
            yield data_frame(internal_error().body())
            return
        if self._includes_usage:
            yield data_frame(self._chunks.usage_chunk(usage))
        yield DONE

    async def _choice(self, index: int, reply: Reply) -> AsyncGenerator[bytes | Finished, None]:
        """The frames of one choice; the last item is its Finished."""
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
                yield comment_frame(None if opened else progress)
            else:
                if not opened:
                    opened = True
                    for chunk in self._chunks.opening_chunks(index, self._includes_usage):
                        yield data_frame(chunk)
                if isinstance(event, Delta):
                    yield data_frame(self._chunks.text_chunk(index, event.text, self._includes_usage))
                else:
                    yield data_frame(self._chunks.closing_chunk(index, event.reason, self._includes_usage))
                    yield event
                    return
            sent_at = clock()
