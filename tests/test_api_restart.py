"""An engine that dies under requests: what each client is told, and that the server comes back by itself."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from backburner.api.server import bind, server, url_of
from backburner.engine.engine import Engine
from backburner.engine.restarts import Restarts
from tests.api_support import HI, app_for, error_of, eventually
from tests.test_engine import ScriptedRunner


@contextmanager
def serving(make: Callable[[], ScriptedRunner], **options: Any) -> Iterator[str]:
    engine: Engine[Any] = Engine(make, "scripted", **options)
    engine.start()
    sock, ready = bind("127.0.0.1", 0), threading.Event()
    running = server(app_for(engine, ctx_size=1000), on_ready=ready.set)
    thread = threading.Thread(target=running.run, args=([sock],), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield url_of(sock)
    finally:
        engine.close()
        running.should_exit = running.force_exit = True
        thread.join(10)


def chat(url: str, stream: bool = False) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, "stream": stream}, timeout=60)


async def all_of(url: str, streams: list[bool]) -> list[httpx.Response]:
    return await asyncio.gather(*(asyncio.to_thread(chat, url, stream) for stream in streams))


def test_case_25_the_running_request_fails_what_waits_goes_on_and_health_is_good_again() -> None:
    release, made = threading.Event(), []

    def make() -> ScriptedRunner:
        if made:
            assert release.wait(30)
        made.append(ScriptedRunner(gate=threading.Event()))
        if len(made) == 1:
            made[0].fault_at = {"decode": SystemExit("the device is gone")}
        else:
            made[1].gate.set()
        return made[-1]

    with serving(make) as url:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(chat(url, stream=True)))
        asking.start()
        assert made[0].entered.wait(30)
        waiting = threading.Thread(target=lambda: answers.extend(asyncio.run(all_of(url, [True, False]))))
        waiting.start()

        def health() -> dict[str, Any]:
            response = httpx.get(f"{url}/health", timeout=60)
            body: dict[str, Any] = response.json()
            assert response.status_code == (200 if body["status"] == "ok" else 503)
            return body

        assert eventually(lambda: health()["queue"]["waiting"] == 2, 30)
        made[0].gate.set()
        asking.join(30)
        (failed,) = answers
        assert '"code":"internal_error"' in failed.text
        assert '"finish_reason":"stop"' not in failed.text
        assert "[DONE]" not in failed.text
        assert "the device" not in failed.text
        body = health()
        assert (body["status"], body["restarts"]) == ("restarting", 1)
        assert "the device is gone" in body["error"]
        release.set()
        waiting.join(60)
        _, streamed, whole = answers
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert whole.json()["choices"][0]["message"]["content"] == "1 2 3 4 5 "
        assert health()["status"] == "ok"
        assert "backburner_engine_restarts_total 1.0" in httpx.get(f"{url}/metrics", timeout=60).text


def test_case_25_an_engine_that_is_beyond_help_answers_503_at_once() -> None:
    runner = ScriptedRunner(fault_at={"decode": SystemExit("broken")})
    with serving(lambda: runner, restarts=Restarts(pauses_s=())) as url:
        assert error_of(chat(url), 500)["code"] == "internal_error"
        assert eventually(lambda: httpx.get(f"{url}/health", timeout=60).json()["status"] == "error", 30)
        response = chat(url)
        assert error_of(response, 503)["code"] == "engine_unavailable"
        assert response.headers["retry-after"]
