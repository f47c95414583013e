"""Killing and freezing the worker's process: with a spill nobody notices but for the time; without one, a request whose
pages are gone fails by name, and all others are answered."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from backburner.engine.worker_link import RETRY_INTERVAL_S
from backburner.worker.loopback import LoopbackWorker
from tests.processes import MODEL, Server, ask, gone, messages, serve, until, worker

# Some seconds of reading, so that a kill finds it in the middle.
LONG = 600
SHORT = 24
ANSWER_TOKENS = {LONG: 8, SHORT: 300}


@pytest.fixture(scope="module")
def references() -> dict[int, str]:
    """The default answer (0), and what each of the requests below gets from a host alone."""
    with serve("--device", "none") as server:
        answers = {
            filler: ask(server, filler, max_tokens=count, extra_body={"ignore_eos": True})
            for filler, count in ANSWER_TOKENS.items()
        }
        return {0: ask(server)} | answers


@pytest.fixture(scope="module")
def reference(references: dict[int, str]) -> str:
    return references[0]


@pytest.fixture(scope="module")
def host() -> Iterator[Server]:
    """Without copies of held pages."""
    with serve("--device", "loopback", "--spill-dir", "none") as server:
        yield server


@pytest.fixture(scope="module")
def spilling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve("--device", "loopback", "--spill-dir", str(tmp_path_factory.mktemp("spill"))) as server:
        yield server


class Request(threading.Thread):
    """A request in the background: what came until it ended, and how."""

    def __init__(self, server: Server, filler: int, stream: bool) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/chat/completions"
        self._body = {
            "model": MODEL,
            "messages": messages(filler),
            "max_tokens": ANSWER_TOKENS[filler],
            "stream": stream,
            "ignore_eos": True,
        }
        self.filler = filler
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                self.text += line + "\n"

    def ended(self) -> tuple[int, str]:
        self.join(60)
        assert not self.is_alive(), "the request hangs"
        return self.status, self.text

    @property
    def answer(self) -> str:
        """The answer's text, streamed or not."""
        if not self._body["stream"]:
            return str(json.loads(self.text)["choices"][0]["message"]["content"])
        lines = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: {")]
        chunks = [json.loads(line) for line in lines]
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def in_prefill(server: Server) -> Request:
    """A request that reads, with pages at the worker."""
    request = Request(server, LONG, stream=False)
    until(lambda: (h := server.health())["queue"]["running"] and h["worker"]["held_pages"] > 4)
    assert request.is_alive()
    return request


def in_decode(server: Server) -> Request:
    """A request that writes, with pages at the worker."""
    request = Request(server, SHORT, stream=True)
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
    child = host.worker()
    child.kill()
    status, text = request.ended()
    assert status == (503 if busy is in_prefill else 200), "a stream has begun; its error is a frame"
    assert '"code": "worker_lost"' in text or '"code":"worker_lost"' in text
    assert "Send the request again" in text
    assert ask(host) == reference
    comes_back(host, reference)
    assert host.worker().pid != child.pid
    assert "Traceback" not in host.output


@pytest.mark.parametrize("busy", [in_prefill, in_decode])
def test_with_a_spill_a_killed_worker_costs_no_request(
    spilling: Server, references: dict[int, str], busy: Callable[[Server], Request]
) -> None:
    comes_back(spilling, references[0])
    request = busy(spilling)
    child = spilling.worker()
    child.kill()
    status, text = request.ended()
    assert status == 200
    assert "worker_lost" not in text
    assert request.answer == references[request.filler]
    comes_back(spilling, references[0])
    assert spilling.worker().pid != child.pid
    assert "Traceback" not in spilling.output


def test_a_tcp_worker_is_used_again_when_it_is_back(reference: str) -> None:
    with (
        worker() as (first, port),
        serve("--device", f"tcp://127.0.0.1:{port}", "--spill-dir", "none") as server,
    ):
        request = in_decode(server)
        first.signal(signal.SIGKILL)
        assert "worker_lost" in request.ended()[1]
        assert lost(server)
        assert not answered_with_worker(server, reference), "nobody is there"
        with worker(port):
            comes_back(server, reference)
        assert "Traceback" not in server.output


def test_with_a_spill_a_request_outlives_its_tcp_worker(references: dict[int, str], tmp_path: Path) -> None:
    with (
        worker() as (first, port),
        serve("--device", f"tcp://127.0.0.1:{port}", "--spill-dir", str(tmp_path)) as server,
    ):
        request = in_decode(server)
        first.signal(signal.SIGKILL)
        assert request.ended()[0] == 200
        assert request.answer == references[SHORT]
        assert lost(server)
        assert ask(server) == references[0], "nobody is there, and its copies are"
        with worker(port):
            comes_back(server, references[0])
        assert "Traceback" not in server.output
    assert not list(tmp_path.iterdir()), "the copies end with the server"


def test_a_server_with_a_frozen_worker_can_be_stopped(tmp_path: Path) -> None:
    """That a request ends at its deadline is in test_faults.py, with a deadline shorter than the real 10 s."""
    with serve("--device", "loopback", "--spill-dir", str(tmp_path)) as server:
        request = in_decode(server)
        child = server.worker()
        child.suspend()
        server.signal(signal.SIGTERM)
        assert server.wait(40) == 0
        # An error, unless the spill's copy was used in time.
        assert any(end in request.ended()[1] for end in ('"error"', "[DONE]"))
        assert gone(child)
        assert "Traceback" not in server.output
        assert "terminate called" not in server.output
