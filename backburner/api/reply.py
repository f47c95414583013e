"""One request in the engine, seen from the event loop: bounded events in, cancelled when left."""

import asyncio
import logging
from dataclasses import replace
from types import TracebackType
from typing import Self

from backburner.api.settings import Api
from backburner.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Handle,
    Progress,
    PromptLogprobs,
    TokenLogprob,
)
from backburner.errors import EngineDead

log = logging.getLogger(__name__)

# How often a wait for the engine looks whether there still is one.
LIVENESS_S = 1.0


class Reply:
    """A submitted request. Leaving the `with` block ends its work, whatever the reason.

    What the client has not taken yet is kept as text and the newest progress, never as a queue of events,
    so a slow reader costs at most the length of its answer.
    """

    def __init__(self, api: Api, request: GenerationRequest, *, further: bool = False) -> None:
        """further: a choice after the first of what was let in; it queues anew, and is not refused for that."""
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._progress: Progress | None = None
        self._text: list[str] = []
        self._ends: list[int] = []  # of tokens in the text
        self._length = 0  # of the text
        self._logprobs: list[TokenLogprob] = []
        self._prompt: list[TokenLogprob] = []
        self._end: Finished | Failed | None = None
        self._submitted_s: float | None = self._loop.time()  # until the first token has come
        self._handle: Handle = api.engine.submit(
            replace(request, admitted=True) if further else request, self._emit
        )
        api.replies.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._api.replies.discard(self)
        self._handle.cancel()

    def fail(self, failure: Failed) -> None:
        """Ends the reply from our side of the seam."""
        self._put(failure)

    async def next(self, timeout_s: float) -> Progress | PromptLogprobs | Delta | Finished | None:
        """What has come since the last call, text joined; None after `timeout_s` without news."""
        if not self._has_news():
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                self._check_alive()
                return None
        if self._prompt:
            scores, self._prompt = PromptLogprobs(tuple(self._prompt)), []
            return scores
        # Tokens without text come with the next text or the end.
        if self._text or self._logprobs or (self._ends and self._end is not None):
            delta = Delta("".join(self._text), (), tuple(self._logprobs), tuple(self._ends))
            self._text.clear()
            self._ends.clear()
            self._length = 0
            self._logprobs.clear()
            return delta
        if isinstance(self._end, Failed):
            raise self._end.error
        if self._end is not None:
            return self._end
        progress, self._progress = self._progress, None
        return progress

    def _has_news(self) -> bool:
        return bool(self._text or self._logprobs or self._prompt or self._end or self._progress)

    def _check_alive(self) -> None:
        status = self._api.engine.status()
        if not status.alive and not status.restarting:
            raise EngineDead(status.error or "the engine has stopped")

    def _emit(self, event: Event) -> None:
        """Called on the engine's thread; must not wait and must not raise."""
        try:
            self._loop.call_soon_threadsafe(self._put, event)
        except RuntimeError:
            log.debug("an event came after the server had stopped")

    def _put(self, event: Event) -> None:
        if self._end is not None:
            return
        match event:
            case Delta():
                if self._submitted_s is not None:
                    self._api.metrics.ttft.observe(self._loop.time() - self._submitted_s)
                    self._submitted_s = None
                if event.text:
                    self._text.append(event.text)
                    self._length += len(event.text)
                self._ends += [self._length] * len(event.token_ids)
                self._logprobs += event.logprobs
            case PromptLogprobs():
                self._prompt += event.tokens
            case Progress():
                self._progress = event
            case Finished() | Failed():
                self._end = event
        # A Delta may hold nothing, while its text is undecided.
        if self._has_news():
            self._wake.set()
