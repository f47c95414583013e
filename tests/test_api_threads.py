"""Prompts on their way to the model: who waits for whom, and what becomes of clients that leave meanwhile."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from backburner.api.threads import LOOKING, PREPARING, Threads
from backburner.errors import EngineDead
from tests.api_support import HI, eventually, listening
from tests.scripted_engine import says, tiny_tokenizer
from tests.test_api_live import chat, open_request


class Rendering:
    """Holds every chat template until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()

    def __call__(self, _: object, messages: list[dict[str, Any]], **__: Any) -> str:
        self.begun.append(messages[0]["content"])
        assert self.go.wait(20)
        return "prompt"


@pytest.fixture
def rendering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rendering]:
    held = Rendering()
    monkeypatch.setattr(type(tiny_tokenizer()), "apply_chat_template", lambda *a, **k: held(*a, **k))
    yield held
    held.go.set()


def test_who_asks_about_prompts_does_not_hold_up_chats(rendering: Rendering) -> None:
    with listening(says("ok")) as (url, _):
        body = {"messages": HI}
        asking = [
            threading.Thread(target=lambda: httpx.post(f"{url}/apply-template", json=body, timeout=20))
            for _ in range(40)
        ]
        for thread in asking:
            thread.start()
        assert eventually(lambda: len(rendering.begun) == LOOKING)
        text = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=10).json()["choices"][0][
            "text"
        ]
        assert text == "ok"
        assert len(rendering.begun) == LOOKING
        rendering.go.set()
        for thread in asking:
            thread.join(20)


def test_a_client_that_leaves_while_its_prompt_is_made_is_never_served(rendering: Rendering) -> None:
    with listening(says("ok")) as (url, engine):
        messages = [[{"role": "user", "content": str(i)}] for i in range(PREPARING + 1)]
        socks = [open_request(url, {"messages": messages[i]}) for i in range(PREPARING)]
        assert eventually(lambda: len(rendering.begun) == PREPARING)
        waiting = open_request(url, {"messages": messages[-1]})
        assert httpx.get(f"{url}/health", timeout=5).status_code == 200
        for sock in (*socks, waiting):
            sock.close()

        def left() -> bool:
            counts = httpx.get(f"{url}/metrics", timeout=5).text
            return f'{{endpoint="/v1/chat/completions",status="499"}} {PREPARING + 1}.0' in counts

        assert eventually(left)
        rendering.go.set()
        assert chat(url).status_code == 200
        assert len(engine.requests) == 1
        assert str(PREPARING) not in rendering.begun  # it had given up its place


def test_the_end_of_the_server_ends_waits_for_threads_and_lets_nobody_in() -> None:
    begun, go = threading.Event(), threading.Event()

    async def stays() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    def work() -> bool:
        begun.set()
        return go.wait(20)

    async def run() -> None:
        threads = Threads()
        asking = [asyncio.create_task(threads.look(stays, work)) for _ in range(LOOKING + 1)]
        assert await asyncio.to_thread(begun.wait, 10)
        threads.close()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(result, EngineDead) for result in results)
        with pytest.raises(EngineDead):
            await threads.prepare(stays, work)

    try:
        asyncio.run(run())
    finally:
        go.set()
