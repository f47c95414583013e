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
from backburner.engine.engine import Engine
from backburner.engine.request import EngineClient, GenerationRequest
from backburner.engine.runner import ModelRunner
from tests.host import host
from tests.scripted_engine import Script, ScriptedEngine, tiny_tokenizer

MODEL = "some-org/tiny-qwen"
HI = [{"role": "user", "content": "hi"}]


def app_for(engine: EngineClient, **settings: Any) -> FastAPI:
    defaults = {"model_id": MODEL, "ctx_size": 4096, "aliases": ("gpt-4o",)}
    return create_app(engine, tiny_tokenizer(), ApiSettings(**{**defaults, **settings}))


class AsgiClient:
    """A synchronous client of an app in this process. Streams come back whole."""

    def __init__(self, app: FastAPI, engine: Any, portal: BlockingPortal) -> None:
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
def _client(engine: Any, **settings: Any) -> Iterator[AsgiClient]:
    """Of an app around the engine, which is closed with it."""
    try:
        with start_blocking_portal() as portal:
            yield AsgiClient(app_for(engine, **settings), engine, portal)
    finally:
        engine.close()


@contextmanager
def asgi(script: Script | Callable[[GenerationRequest], Script], **settings: Any) -> Iterator[AsgiClient]:
    with _client(ScriptedEngine(script), **settings) as client:
        yield client


@contextmanager
def asgi_tiny(**settings: Any) -> Iterator[AsgiClient]:
    """The real engine with the tiny model, made and run on its own thread."""
    made = []

    def make() -> ModelRunner:
        context = host()
        made.append(context)
        return context.__enter__()

    engine = Engine(make, "tiny")
    engine.start()
    with _client(engine, **settings) as client:
        yield client


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


def assembled(response: httpx.Response, index: int = 0) -> dict[str, Any]:
    """What a strict client makes of one choice of a chat stream, in the form of a whole answer's choice."""
    message: dict[str, Any] = {"role": None, "content": ""}
    scores: list[dict[str, Any]] | None = None
    reason = None
    for choice in (c for frame in frames(response) for c in frame["choices"] if c["index"] == index):
        assert reason is None, "nothing follows the finish_reason"
        delta, reason = choice["delta"], choice["finish_reason"]
        message["role"] = message["role"] or delta.get("role")
        for field in ("content", "reasoning_content"):
            if delta.get(field):
                message[field] = message.get(field, "") + delta[field]
        for part in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if part["index"] == len(calls):
                calls.append({k: part[k] for k in ("id", "type")} | {"function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        if choice["logprobs"] is not None:
            scores = (scores or []) + choice["logprobs"]["content"]
    if "tool_calls" in message:
        message["content"] = message["content"] or None
    logprobs = None if scores is None else {"content": scores}
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice to compare: ids of calls are new in each answer, and no scores at all have no chunk to come in."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        assert all(call["id"] for call in message["tool_calls"])
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "id"} for c in message["tool_calls"]]
    logprobs = choice["logprobs"] if choice["logprobs"] != {"content": []} else None
    return {**choice, "message": message, "logprobs": logprobs}


def both_ways(client: "AsgiClient", **fields: Any) -> dict[str, Any]:
    """The one choice of a chat, which has to be the same whole and streamed."""
    whole = client.chat(**fields)
    assert whole.status_code == 200, whole.text
    streamed = client.chat(stream=True, **fields)
    assert streamed.text.endswith("data: [DONE]\n\n")
    (choice,) = whole.json()["choices"]
    assert without_ids(assembled(streamed)) == without_ids(choice)
    return dict(choice)


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
