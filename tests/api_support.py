"""Clients for the API tests: in-process over ASGI, and a real server on a loopback port."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from backburner.api.app import create_app
from backburner.api.server import bind, server, url_of
from backburner.api.settings import ApiSettings
from backburner.engine.request import GenerationRequest
from tests.scripted_engine import Script, ScriptedEngine, tiny_tokenizer

MODEL = "some-org/tiny-qwen"
HI = [{"role": "user", "content": "hi"}]


def app_for(engine: ScriptedEngine, **settings: Any) -> FastAPI:
    defaults = {"model_id": MODEL, "ctx_size": 4096, "aliases": ("gpt-4o",)}
    return create_app(engine, tiny_tokenizer(), ApiSettings(**{**defaults, **settings}))


class AsgiClient:
    """A synchronous client of an app in this process. Streams come back whole."""

    def __init__(self, app: FastAPI, engine: ScriptedEngine, portal: BlockingPortal) -> None:
        self.app = app
        self.engine = engine
        self._portal = portal

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **options)

        return self._portal.call(send)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def raw(self, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        headers = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.request("POST", path, content=body, headers=headers)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": HI, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "hi", **fields})


@contextmanager
def asgi(script: Script | Callable[[GenerationRequest], Script], **settings: Any) -> Iterator[AsgiClient]:
    engine = ScriptedEngine(script)
    try:
        with start_blocking_portal() as portal:
            yield AsgiClient(app_for(engine, **settings), engine, portal)
    finally:
        engine.close()


@contextmanager
def listening(
    script: Script | Callable[[GenerationRequest], Script], **settings: Any
) -> Iterator[tuple[str, ScriptedEngine]]:
    """A real server on a free loopback port: its URL and its engine."""
    engine = ScriptedEngine(script)
    sock = bind("127.0.0.1", 0)
    ready = threading.Event()
    running = server(app_for(engine, **settings), on_ready=ready.set)
    thread = threading.Thread(target=running.run, args=([sock],), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield url_of(sock), engine
    finally:
        engine.close()
        running.should_exit = running.force_exit = True
        thread.join(10)
        assert not thread.is_alive()


def frames(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON frames of a stream, without comments and [DONE]."""
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def streamed_text(response: httpx.Response) -> str:
    choices = [c for frame in frames(response) for c in frame["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, whose shape every OpenAI client can read."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def eventually(condition: Callable[[], object], within_s: float = 5.0) -> bool:
    """Whether the condition comes true; a wait, not a measurement."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
