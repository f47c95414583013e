"""Real processes and the real client: same answers wherever pages live, clean ends, and no worker left behind."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import psutil
import pytest

from tests.processes import MODEL, Server, ask, gone, messages, serve, until, worker

DEVICES = ["none", "loopback", "tcp"]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with worker() as (_, port), ExitStack() as running:
        flags = {"none": "none", "loopback": "loopback", "tcp": f"tcp://127.0.0.1:{port}"}
        found = {name: Server(["serve", "--port", "0", "--device", flag]) for name, flag in flags.items()}
        for server in found.values():
            running.callback(server.stop)
        for server in found.values():
            server.wait_until_ready()
        yield found


@pytest.fixture(scope="module")
def reference(servers: dict[str, Server]) -> str:
    return ask(servers["none"])


def test_the_fact_is_found_without_a_worker(servers: dict[str, Server], reference: str) -> None:
    assert "4821" in reference
    assert servers["none"].health()["worker"] is None


@pytest.mark.parametrize("device", DEVICES)
def test_chat_is_the_same_on_every_device(servers: dict[str, Server], reference: str, device: str) -> None:
    server = servers[device]
    assert ask(server) == reference
    if device == "none":
        return
    health = server.health()
    assert health["status"] == "ok"
    assert health["worker"]["state"] == "ready"
    assert health["worker"]["held_pages"] > 0, "the test must really use held pages"
    # The counters come with the next heartbeat.
    until(lambda: server.health()["worker"]["stored_pages"] >= health["worker"]["held_pages"])


@pytest.mark.parametrize("device", DEVICES)
def test_a_stream_is_the_same_text_in_pieces(servers: dict[str, Server], reference: str, device: str) -> None:
    stream = (
        servers[device]
        .client()
        .chat.completions.create(
            model=MODEL, messages=messages(), stream=True, stream_options={"include_usage": True}
        )
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reference
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.prompt_tokens > 256, "the prompt must pass the window"


@pytest.mark.parametrize("device", DEVICES)
def test_a_second_turn_says_what_was_cached_and_is_the_same_text(
    servers: dict[str, Server], device: str
) -> None:
    def turn(server: Server, question: str) -> tuple[str, int]:
        fact = "Notes. The code of the old mill is 7305. "  # a text that no other test sends
        body = {"model": MODEL, "messages": messages(30, question, fact), "max_tokens": 24}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        return (
            reply["choices"][0]["message"]["content"],
            reply["usage"]["prompt_tokens_details"]["cached_tokens"],
        )

    assert turn(servers[device], "What is the code of the old mill?")[1] == 0
    text, cached = turn(servers[device], "What is the code of the mill, please?")
    assert cached >= 256
    with serve("--device", "none") as fresh:
        assert turn(fresh, "What is the code of the mill, please?") == (text, 0)


def test_completions_are_the_same_on_every_device(servers: dict[str, Server]) -> None:
    prompt = (
        "The code of the blue gate is 4821. " + "The river was calm. " * 80 + "The code of the blue gate is"
    )
    answers = {
        device: servers[device].client().completions.create(model=MODEL, prompt=prompt, max_tokens=24)
        for device in DEVICES
    }
    texts = {answer.choices[0].text for answer in answers.values()}
    assert len(texts) == 1
    assert texts.pop().strip()
    assert servers["tcp"].health()["worker"]["held_pages"] > 0


def test_a_sampled_answer_with_a_seed_is_the_same_on_every_device(servers: dict[str, Server]) -> None:
    assert len({ask(servers[d], temperature=0.9, seed=7, max_tokens=40) for d in DEVICES}) == 1


def test_eight_clients_at_once_get_what_each_gets_alone(servers: dict[str, Server]) -> None:
    server = servers["loopback"]
    codes = [1000 + 137 * i for i in range(8)]

    def asked(code: int) -> str:
        answer = server.client().chat.completions.create(
            model=MODEL,
            messages=messages(fact=f"Notes. The code of the blue gate is {code}. ", filler=16),
            max_tokens=24,
        )
        return answer.choices[0].message.content or ""

    one_by_one = [asked(code) for code in codes]
    with ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(asked, codes))
    assert at_once == one_by_one
    assert len(set(one_by_one)) > 1, "distinct prompts must give distinct answers"
    server.until_idle()


@pytest.mark.parametrize("device", DEVICES)
def test_leaving_in_mid_stream_frees_the_engine(
    servers: dict[str, Server], reference: str, device: str
) -> None:
    server = servers[device]
    _read_some(server, 3)
    assert ask(server) == reference
    server.until_idle()


def test_leaving_in_mid_prefill_frees_the_engine(servers: dict[str, Server], reference: str) -> None:
    server = servers["loopback"]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"model": MODEL, "messages": messages(filler=1500)},
            timeout=httpx.Timeout(30, read=1.0),
        )
    assert ask(server) == reference
    server.until_idle()


@pytest.mark.parametrize(
    ("number", "device", "busy"),
    [
        (signal.SIGINT, "none", "idle"),
        (signal.SIGTERM, "loopback", "idle"),
        (signal.SIGTERM, "none", "streaming"),
        (signal.SIGINT, "loopback", "streaming"),
    ],
)
def test_a_signal_ends_the_server_cleanly(number: signal.Signals, device: str, busy: str) -> None:
    with serve("--device", device) as server:
        child = server.worker() if device == "loopback" else None
        reader = None
        if busy == "streaming":
            reader = _Reader(server)
            reader.started.wait(30)
        asked_at = time.monotonic()
        server.signal(number)
        assert server.wait() == 0
        assert time.monotonic() - asked_at < 10, "an end within a few seconds"
        if reader is not None:
            reader.join(10)
            assert not reader.is_alive(), "the client's stream has ended"
            assert "engine_unavailable" in reader.text, "the client is told why"
        assert "Traceback" not in server.output
        assert "ERROR" not in server.output
        if child is not None:
            until(lambda: gone(child), what="the loopback worker is still there")


def test_a_killed_host_takes_its_loopback_worker_along() -> None:
    with serve("--device", "loopback") as server:
        child = server.worker()
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: gone(child), what="the loopback worker is still there")


def test_a_killed_host_leaves_the_tcp_worker_to_the_next(reference: str) -> None:
    with worker() as (process, port):
        device = f"tcp://127.0.0.1:{port}"
        with serve("--device", device) as first:
            reader = _Reader(first)
            reader.started.wait(30)
            first.signal(signal.SIGKILL)
            first.wait()
            reader.join(10)
        with serve("--device", device) as second:
            assert second.health()["worker"]["stored_pages"] > 0, "pages outlive the host"
            assert ask(second) == reference
            assert second.health()["worker"]["held_pages"] > 0
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_worker_cleanly_while_it_serves(number: signal.Signals) -> None:
    with worker() as (process, port), serve("--device", f"tcp://127.0.0.1:{port}") as server:
        process.signal(number)
        assert process.wait() == 0
        assert "Traceback" not in process.output
        assert server.running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_start_ends_it_at_once(number: signal.Signals) -> None:
    # A worker that never answers keeps the start waiting at a known place.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(["serve", "--port", "0", "--device", f"tcp://127.0.0.1:{silent.getsockname()[1]}"])
        try:
            silent.settimeout(60)
            caller, _ = silent.accept()
            server.signal(number)
            assert server.wait() == 128 + number
            assert "Traceback" not in server.output
            assert "terminate called" not in server.output
            caller.close()
        finally:
            server.stop()


def test_a_host_killed_during_start_takes_its_loopback_worker_along() -> None:
    server = Server(["serve", "--port", "0", "--device", "loopback"])
    try:
        child = until(lambda: psutil.Process(server.pid).children(), 60)[0]
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: gone(child), what="the loopback worker is still there")
    finally:
        server.stop()


def _read_some(server: Server, pieces: int) -> None:
    """Takes the first pieces of an endless answer and goes away."""
    with server.client().chat.completions.create(
        model=MODEL, messages=messages(), stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for _, _ in zip(range(pieces), stream, strict=False):
            pass


class _Reader(threading.Thread):
    """Reads an endless stream until it ends, whichever way."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.started = threading.Event()
        self.text = ""
        self.start()

    def run(self) -> None:
        body = {"model": MODEL, "messages": messages(), "stream": True, "ignore_eos": True}
        try:
            with httpx.stream(
                "POST", f"{self._server.url}/v1/chat/completions", json=body, timeout=60
            ) as response:
                for line in response.iter_lines():
                    self.text += line + "\n"
                    if self.text.count("data: ") > 5:
                        self.started.set()
        except httpx.HTTPError as e:
            self.text += f"ended by {type(e).__name__}"
