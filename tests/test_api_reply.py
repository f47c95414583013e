"""Events on their way from the engine's thread to a client that may be slow."""

import asyncio
from typing import Any

import pytest

from backburner.api.reply import Reply
from backburner.api.settings import Api
from backburner.engine.request import Delta, Failed, Finished, GenerationRequest, Progress
from backburner.errors import EngineDead, LinkClosed
from tests.api_support import app_for
from tests.scripted_engine import Script, ScriptedEngine


def with_reply(script: Script, use: Any, settle_s: float = 0.3) -> Any:
    """Runs `use(reply)` on an event loop, after the engine had time to run ahead of the client."""

    async def run() -> Any:
        engine = ScriptedEngine(script)
        api: Api = app_for(engine).state.api
        try:
            with Reply(api, GenerationRequest("r", (1, 2), 100_000)) as reply:
                await asyncio.sleep(settle_s)
                result = await use(reply)
            assert not api.replies
            assert engine.handles[0].cancelled.is_set()
            return result
        finally:
            engine.close()

    return asyncio.run(run())


def test_what_a_client_has_not_read_is_one_text_and_not_a_queue_of_events() -> None:
    async def use(reply: Reply) -> list[object]:
        return [await reply.next(5), await reply.next(5)]

    script = Script(pieces=["ab"] * 1000, prefill=[(n, 100) for n in range(100)])
    text, end = with_reply(script, use, settle_s=1)
    assert text == Delta("ab" * 1000, (), ends=tuple(range(2, 2001, 2)))
    assert isinstance(end, Finished)


def test_only_the_newest_progress_is_kept() -> None:
    async def use(reply: Reply) -> list[object]:
        return [await reply.next(5), await reply.next(0.05)]

    script = Script(prefill=[(n, 100) for n in range(100)], hang_at=0)
    assert with_reply(script, use) == [Progress(99, 100), None]


def test_a_delta_without_text_is_no_news() -> None:
    async def use(reply: Reply) -> object:
        started = asyncio.get_running_loop().time()
        assert await reply.next(0.5) is None
        return asyncio.get_running_loop().time() - started

    script = Script(pieces=[""] * 100, token_delay_s=0.01, hang_at=100)
    assert with_reply(script, use, settle_s=0) >= 0.4


def test_text_before_a_failure_is_delivered_first() -> None:
    async def use(reply: Reply) -> object:
        first = await reply.next(5)
        with pytest.raises(LinkClosed):
            await reply.next(5)
        return first

    assert with_reply(Script(pieces=["ab", "c"], fault_at=1, fault=LinkClosed("gone")), use) == Delta(
        "ab", (), ends=(2,)
    )


def test_a_reply_can_be_ended_from_the_servers_side() -> None:
    async def use(reply: Reply) -> None:
        reply.fail(Failed(EngineDead("shutting down")))
        with pytest.raises(EngineDead):
            await reply.next(5)

    with_reply(Script(hang_at=0), use)


def test_an_event_after_the_loop_has_closed_does_not_harm_the_engine() -> None:
    replies: list[Reply] = []

    async def use(reply: Reply) -> None:
        replies.append(reply)

    with_reply(Script(hang_at=0), use, settle_s=0)
    replies[0]._emit(Delta("late", ()))
