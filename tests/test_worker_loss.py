"""Killing and freezing the worker's process: the request that needed it fails by name, all others are answered."""

import signal
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from backburner.engine.worker_link import RETRY_INTERVAL_S
from backburner.worker.loopback import LoopbackWorker
from tests.processes import MODEL, Server, ask, gone, messages, serve, until, worker

# Some seconds of reading, so that a kill finds it in the middle.
LONG = 1200


@pytest.fixture(scope="module")
def reference() -> str:
    with serve("--device", "none") as server:
        return ask(server)


@pytest.fixture(scope="module")
def host() -> Iterator[Server]:
    with serve("--device", "loopback") as server:
        yield server


class Request(threading.Thread):
    """A request in the background: what came until it ended, and how."""

    def __init__(self, server: Server, filler: int, stream: bool) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/chat/completions"
        self._body = {"model": MODEL, "messages": messages(filler), "stream": stream, "ignore_eos": True}
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                self.text += line + "\n"

    def ended(self) -> tuple[int, str]:
        self.join(30)
        assert not self.is_alive(), "the request hangs"
        return self.status, self.text


def in_prefill(server: Server) -> Request:
    """A request that reads, with pages at the worker."""
    request = Request(server, LONG, stream=False)
    until(lambda: (h := server.health())["queue"]["running"] and h["worker"]["held_pages"] > 4)
    assert request.is_alive()
    return request


def in_decode(server: Server) -> Request:
    """A request that writes, with pages at the worker."""
    request = Request(server, 24, stream=True)
    until(lambda: request.text.count("data: ") > 5)
    assert server.health()["worker"]["held_pages"] > 0
    return request


def lost(server: Server) -> bool:
    health = server.health()
    assert health["status"] == "ok"
    return health["worker"]["state"] == "lost" and bool(health["worker"]["error"])


def answered_with_worker(server: Server, reference: str) -> bool:
    """Asks once, which is when a lost worker is tried again. The text is the same either way."""
    assert ask(server) == reference
    worker = server.health()["worker"]
    return worker["state"] == "ready" and worker["held_pages"] > 0


def comes_back(server: Server, reference: str) -> None:
    end = time.monotonic() + 6 * RETRY_INTERVAL_S
    while not answered_with_worker(server, reference):
        assert time.monotonic() < end, "the worker is not used again"
        time.sleep(0.5)


def test_a_loopback_worker_killed_while_idle_is_started_again(host: Server, reference: str) -> None:
    assert answered_with_worker(host, reference)
    child = host.worker()
    child.kill()
    until(lambda: lost(host), what="/health does not say that the worker is lost")
    comes_back(host, reference)
    assert host.worker().pid != child.pid
    assert "Traceback" not in host.output


def test_a_request_right_after_a_kill_is_answered(host: Server, reference: str) -> None:
    """Before any heartbeat has noticed: nothing was held yet, so it goes on alone."""
    comes_back(host, reference)
    host.worker().kill()
    assert ask(host) == reference
    comes_back(host, reference)


def test_a_frozen_loopback_worker_is_replaced() -> None:
    loopback = LoopbackWorker(2**20)
    try:
        loopback.connect().close()
        assert loopback.pid is not None
        frozen = psutil.Process(loopback.pid)
        frozen.suspend()
        loopback.connect().close()
        assert loopback.pid != frozen.pid
        until(lambda: gone(frozen))
    finally:
        loopback.close()


@pytest.mark.parametrize("busy", [in_prefill, in_decode])
def test_a_request_whose_pages_are_gone_ends_with_a_named_error(
    host: Server, reference: str, busy: Callable[[Server], Request]
) -> None:
    comes_back(host, reference)
    request = busy(host)
    host.worker().kill()
    status, text = request.ended()
    assert status == (503 if busy is in_prefill else 200), "a stream has begun; its error is a frame"
    assert '"code": "worker_lost"' in text or '"code":"worker_lost"' in text
    assert "Send the request again" in text
    assert lost(host)
    assert ask(host) == reference
    comes_back(host, reference)
    assert "Traceback" not in host.output


def test_a_tcp_worker_is_used_again_when_it_is_back(reference: str) -> None:
    with worker() as (first, port), serve("--device", f"tcp://127.0.0.1:{port}") as server:
        request = in_decode(server)
        first.signal(signal.SIGKILL)
        assert "worker_lost" in request.ended()[1]
        assert lost(server)
        assert not answered_with_worker(server, reference), "nobody is there"
        with worker(port):
            comes_back(server, reference)
        assert "Traceback" not in server.output


def test_a_server_with_a_frozen_worker_can_be_stopped() -> None:
    """That a request ends at its deadline is in test_faults.py, with a deadline shorter than the real 10 s."""
    with serve("--device", "loopback") as server:
        request = in_decode(server)
        child = server.worker()
        child.suspend()
        server.signal(signal.SIGTERM)
        assert server.wait(40) == 0
        assert '"error"' in request.ended()[1]
        assert gone(child)
        assert "Traceback" not in server.output
        assert "terminate called" not in server.output
