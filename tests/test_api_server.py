"""The port and the end: a port in use is found early, signals end streams with a reason."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from backburner.api.server import bind, local_url_of, url_of
from backburner.api.threads import PREPARING
from backburner.errors import ConfigError
from tests.api_support import HI, error_of, frames, listening
from tests.scripted_engine import says

ROOT = Path(__file__).parent.parent

# Serves an engine that never finishes, as the command line would; says when it is ready and has ended.
PROGRAM = textwrap.dedent(
    """
    from tests.api_support import app_for
    from backburner.api.server import bind, serve, url_of
    from tests.scripted_engine import ScriptedEngine, says
    engine = ScriptedEngine(says("hello", hang_at=2))
    sock = bind("127.0.0.1", 0)
    serve(app_for(engine), sock, on_ready=lambda: print(url_of(sock), flush=True))
    engine.close()
    print("ended", flush=True)
    """
)

# The same with a template that is rendered for ever, for more requests than there are threads.
STUCK = textwrap.dedent(
    """
    import threading
    from tests.api_support import app_for
    from backburner.api.server import bind, serve, url_of
    from tests.scripted_engine import ScriptedEngine, says, tiny_tokenizer
    engine = ScriptedEngine(says("hello"))
    release = threading.Event()
    def render(*_, **__):
        print("rendering", flush=True)
        release.wait(60)
    type(tiny_tokenizer()).apply_chat_template = render
    sock = bind("127.0.0.1", 0)
    serve(app_for(engine), sock, on_ready=lambda: print(url_of(sock), flush=True))
    engine.close()
    print("ended", flush=True)
    release.set()
    """
)


def started(program: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_a_port_in_use_is_a_config_error_that_names_it() -> None:
    with listening(says("ok")) as (url, _):
        port = httpx.URL(url).port
        assert port
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70000), ("192.0.2.1", 0)]
)
def test_an_impossible_address_is_a_config_error(host: str, port: int) -> None:
    with pytest.raises(ConfigError):
        bind(host, port)


def test_port_zero_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")]
)
def test_the_address_to_try_is_one_that_can_be_connected_to(host: str, local: str) -> None:
    try:
        sock = bind(host, 0)
    except ConfigError as e:
        pytest.skip(f"no IPv6 here: {e}")
    with sock:
        assert local_url_of(sock) == f"http://{local}:{sock.getsockname()[1]}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_stream_with_a_reason_and_returns_to_the_caller(number: signal.Signals) -> None:
    process = started(PROGRAM)
    assert process.stdout
    try:
        url = process.stdout.readline().strip()
        body = {"messages": HI, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            read = b""
            for chunk in response.iter_raw():
                if not read:
                    process.send_signal(number)
                read += chunk
        last = frames(httpx.Response(200, content=read))[-1]
        assert last["error"]["code"] == "engine_unavailable"
        assert "shutting down" in last["error"]["message"]
        assert process.stdout.readline().strip() == "ended"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_prompts_that_are_still_prepared_do_not_hold_up_the_end() -> None:
    process = started(STUCK, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{url}/v1/chat/completions", json={"messages": HI}, timeout=30))

    try:
        url = process.stdout.readline().strip()
        clients = [threading.Thread(target=ask) for _ in range(PREPARING + 1)]
        for client in clients:
            client.start()
        for _ in range(PREPARING):
            assert process.stdout.readline().strip() == "rendering"
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(30)
        assert len(answers) == len(clients)
        for answer in answers:
            assert "shutting down" in error_of(answer, 503)["message"]
        assert process.stdout.readline().strip() == "ended"
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
