"""Over real sockets: faults in mid-answer, keep-alives, clients that leave, clients that do not read."""

import asyncio
import json
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, ClassVar, cast
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from backburner.api.chat import ChatChoice, ChatFormat
from backburner.api.connection import Connection
from backburner.engine.request import GenerationRequest
from backburner.errors import (
    BackburnerError,
    ContextExceeded,
    EngineDead,
    LinkClosed,
    LinkTimeout,
    ModelError,
    OutOfBudget,
)
from tests.api_support import HI, app_for, asgi, error_of, eventually, frames, listening, streamed_text
from tests.scripted_engine import Script, ScriptedEngine, says, tiny_tokenizer

LONG = says("so it goes on " * 200, token_delay_s=0.01)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def open_socket(url: str, receive_buffer_bytes: int | None = None) -> socket.socket:
    address = urlsplit(url)
    sock = socket.socket()
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(10)
    sock.connect((address.hostname, address.port))
    return sock


def open_request(url: str, body: dict[str, Any], receive_buffer_bytes: int | None = None) -> socket.socket:
    """Sends a chat request over a bare socket, which the test may then close or leave unread."""
    sock = open_socket(url, receive_buffer_bytes)
    content = json.dumps({"messages": HI, **body}).encode()
    sock.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


def chat(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, **fields}, timeout=20)


def idle(engine: ScriptedEngine) -> Callable[[], bool]:
    return lambda: engine.running is None and engine.status().waiting == 0


@pytest.mark.parametrize(
    ("fault", "status", "retry"),
    [
        (EngineDead("gone"), 503, True),
        (LinkClosed("gone"), 503, True),
        (LinkTimeout("slow"), 503, True),
        (OutOfBudget("full"), 503, True),
        (ContextExceeded("full"), 400, False),
        (ModelError("odd"), 500, False),
        (BackburnerError("odd"), 500, False),
    ],
)
def test_a_failure_has_the_status_that_tells_whether_to_retry(
    fault: BackburnerError, status: int, retry: bool
) -> None:
    with asgi(says("ABC", fault_at=0, fault=fault)) as client:
        response = client.chat()
    error = error_of(response, status)
    assert error["code"] == fault.code
    assert error["message"] == str(fault)
    assert ("retry-after" in response.headers) == retry
    if status == 500:
        assert response.headers["x-should-retry"] == "false"


def test_a_failure_late_in_an_unstreamed_answer_is_an_error_and_not_half_an_answer() -> None:
    with asgi(says("ABC", fault_at=2, fault=LinkClosed("gone"))) as client:
        error_of(client.chat(), 503)


def test_a_failure_in_mid_stream_is_an_error_frame_without_a_reason_or_done() -> None:
    with asgi(says("ABCDEF", fault_at=3, fault=LinkClosed("the worker is gone"))) as client:
        response = client.chat(stream=True, stream_options={"include_usage": True})
    *before, last = frames(response)
    assert "".join(f["choices"][0]["delta"].get("content", "") for f in before) == "ABC"
    assert last == {
        "error": {
            "message": "the worker is gone",
            "type": "server_error",
            "param": None,
            "code": "link_closed",
        }
    }
    assert all(f["choices"][0]["finish_reason"] is None for f in before)
    assert "[DONE]" not in response.text


def defect(*_: object) -> None:
    raise RuntimeError("a secret")


def test_a_defect_in_mid_stream_is_an_error_frame_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatChoice, "delta", defect)
    with asgi(says("ABC")) as client:
        response = client.chat(stream=True)
        assert frames(response)[-1]["error"]["code"] == "internal_error"
        assert "secret" not in response.text
        assert "[DONE]" not in response.text
        assert eventually(client.engine.handles[0].cancelled.is_set)


def test_a_defect_before_an_answer_is_a_500_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatFormat, "whole", defect)
    with asgi(says("ABC")) as client:
        response = client.chat()
    assert error_of(response, 500)["code"] == "internal_error"
    assert response.headers["x-should-retry"] == "false"
    assert "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_a_503_at_once(stream: bool) -> None:
    with asgi(says("ABC")) as client:
        client.engine.alive = False
        client.engine.ctx_size = 0
        response = client.chat(stream=stream)
    assert error_of(response, 503)["code"] == "engine_unavailable"
    assert "retry-after" in response.headers


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_silently_fails_the_request(stream: bool) -> None:
    with asgi(says("ABC", hang_at=1), keep_alive_s=0.05) as client:
        threading.Timer(0.2, lambda: setattr(client.engine, "alive", False)).start()
        response = client.chat(stream=stream)
    if stream:
        assert frames(response)[-1]["error"]["code"] == "engine_unavailable"
    else:
        error_of(response, 503)


def test_comments_flow_by_the_clock_while_queued_and_in_prefill() -> None:
    prefill = [(n * 256, 1024) for n in range(1, 5)]
    slow = Script(says("ok").tokens, prefill=prefill, prefill_delay_s=0.12)
    with asgi(slow, keep_alive_s=0.05) as client:
        response = client.chat(stream=True)
    comments = [line for line in response.text.split("\n\n") if line.startswith(":")]
    assert ": keep-alive" in comments
    assert ": prefill 256/1024" in comments
    assert ": prefill 768/1024" in comments
    first_data = response.text.index("data:")
    assert all(response.text.index(c) < first_data for c in comments)
    assert streamed_text(response) == "ok"


def test_comments_come_while_a_long_prompt_makes_no_progress_and_between_slow_tokens() -> None:
    with listening(Script(says("ok").tokens, hang_at=1), keep_alive_s=0.05) as (url, _):
        lines: list[str] = []
        body = {"messages": HI, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=10) as response:
            for line in response.iter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 3:
                    break
    assert any('"content":"' in line for line in lines)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode", "hang"])
def test_a_client_that_leaves_ends_the_work(stream: bool, phase: str) -> None:
    script = {
        "prefill": Script(LONG.tokens, prefill=[(n, 1000) for n in range(1000)], prefill_delay_s=0.02),
        "decode": LONG,
        "hang": Script(LONG.tokens, hang_at=0),
    }[phase]
    with listening(script) as (url, engine):
        sock = open_request(url, {"stream": stream})
        assert eventually(lambda: engine.running)
        if phase == "decode":
            assert eventually(lambda: engine.emitted_tokens > 3)
        sock.close()
        assert eventually(idle(engine), within_s=2)
        assert not engine.completed


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_served_and_others_are(stream: bool) -> None:
    # The first request holds the engine until it is released; the second leaves; the third is served.
    release = threading.Event()

    def script(request: GenerationRequest) -> Script:
        if len(engine.requests) and request is engine.requests[0]:
            assert release.wait(10)
        return says("ok")

    with listening(script) as (url, engine):
        first = open_request(url, {"stream": stream})
        assert eventually(lambda: engine.running)
        second = open_request(url, {"stream": stream})
        assert eventually(lambda: len(engine.handles) == 2)
        second.close()
        assert eventually(engine.handles[1].cancelled.is_set, within_s=2)
        release.set()
        assert chat(url).json()["choices"][0]["message"]["content"] == "ok"
        assert engine.requests[1].request_id not in engine.completed
        assert engine.requests[0].request_id in engine.completed
        first.close()


def test_a_reader_that_stalls_is_cancelled_and_others_are_not_touched() -> None:
    # More than the socket buffers of both sides hold, so that the server has to notice.
    flood = Script(pieces=["x" * 65536] * 2000, token_delay_s=0.001)

    def script(request: GenerationRequest) -> Script:
        return says("ok") if request.max_tokens == 5 else flood

    with listening(script, write_stall_s=0.5) as (url, engine):
        engine.ctx_size = 10**6
        stalled = open_request(url, {"stream": True}, receive_buffer_bytes=4096)
        assert eventually(lambda: engine.handles and engine.handles[0].cancelled.is_set(), within_s=15)
        assert chat(url, max_tokens=5).json()["choices"][0]["message"]["content"] == "ok"
        assert engine.requests[0].request_id not in engine.completed
        stalled.close()


@pytest.mark.parametrize("stream", [False, True])
def test_the_connection_of_a_reader_that_stalls_is_ended(stream: bool) -> None:
    # More than the kernel takes, so that some of it waits in the server.
    with listening(Script(pieces=["x" * 65536] * 300), write_stall_s=0.5) as (url, engine):
        engine.ctx_size = 10**6
        with open_request(url, {"stream": stream}, receive_buffer_bytes=4096) as stalled:
            ends = select.poll()
            ends.register(stalled, 0)
            assert ends.poll(15_000), "the connection goes on"


def test_a_reader_that_takes_a_little_now_and_then_has_not_stalled() -> None:
    class Taking:
        """A transport with less to send whenever it is asked, until its client stalls."""

        waiting: ClassVar = [300, 200, 100, 100]
        aborted = False

        def get_write_buffer_size(self) -> int:
            return self.waiting.pop(0)

        def get_extra_info(self, name: str) -> Any:
            return MagicMock()

        def set_write_buffer_limits(self, high: int) -> None: ...

        def abort(self) -> None:
            self.aborted = True

    async def run() -> None:
        engine = ScriptedEngine(says("ok"))
        try:
            config = uvicorn.Config(
                app_for(engine, write_stall_s=0.01), lifespan="off", ws="none", log_config=None
            )
            connection, transport = Connection(config, ServerState(), {}), Taking()
            connection.connection_made(cast(asyncio.Transport, transport))
            connection.pause_writing()
            while not transport.aborted:
                await asyncio.sleep(0.01)
            assert not transport.waiting
        finally:
            engine.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_slow_reader_gets_the_whole_answer() -> None:
    text = "one two three 🙂 " * 50
    with listening(says(text)) as (url, _):
        body = {"messages": HI, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=10) as response:
            read = b""
            for chunk in response.iter_raw(64):
                read += chunk
    whole = httpx.Response(200, content=read)
    assert streamed_text(whole) == text


def test_health_answers_while_a_long_prompt_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendering, release = threading.Event(), threading.Event()

    def render(*_: Any, **__: Any) -> str:
        rendering.set()
        assert release.wait(10)
        return "prompt"

    monkeypatch.setattr(type(tiny_tokenizer()), "apply_chat_template", render)
    with listening(says("ok")) as (url, engine):
        sock = open_request(url, {})
        assert rendering.wait(10)
        assert httpx.get(f"{url}/health", timeout=5).status_code == 200
        release.set()
        assert eventually(lambda: engine.completed)
        sock.close()


def test_a_body_that_never_comes_is_given_up() -> None:
    with listening(says("ok"), body_idle_s=0.1) as (url, engine):
        sock = open_socket(url)
        sock.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert sock.recv(100).startswith(b"HTTP/1.1 408")
        sock.close()
        assert chat(url).status_code == 200
        assert len(engine.requests) == 1


def test_a_client_that_leaves_in_mid_body_harms_nobody() -> None:
    with listening(says("ok")) as (url, engine):
        sock = open_socket(url)
        sock.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        sock.close()
        assert chat(url).status_code == 200
        assert len(engine.requests) == 1


def test_a_client_that_sends_far_too_much_can_read_why_it_is_refused() -> None:
    with listening(says("ok"), max_body_bytes=100_000) as (url, engine):
        response = chat(url, padding="x" * 20_000_000)
        assert error_of(response, 413)["code"] == "body_too_large"
        assert chat(url).status_code == 200
        assert len(engine.requests) == 1


def test_sixteen_clients_at_once_each_get_their_own_answer() -> None:
    with listening(lambda request: Script(request.prompt)) as (url, _):
        results: dict[int, str] = {}

        def ask(i: int) -> None:
            body = {"prompt": f"codeword {i}", "stream": i % 2 == 0}
            response = httpx.post(f"{url}/v1/completions", json=body, timeout=20)
            results[i] = streamed_text(response) if i % 2 == 0 else response.json()["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert results == {i: f"codeword {i}" for i in range(16)}
