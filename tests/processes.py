"""Starts, watches and stops real `backburner` processes; what they wrote is shown when a test fails."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil

ROOT = Path(__file__).parent.parent

# A start takes 3 s; a busy CI machine may need many times that.
START_S = 90.0
STOP_S = 20.0

MODEL = "tiny"
QUESTION = "What is the code of the blue gate?"
FACT = "Notes. The code of the blue gate is 4821. "
FILLER = "The river was calm and the boats stayed in the harbour. "


def environment(**extra: str) -> dict[str, str]:
    """This process's own, without settings of ours that a developer may have exported."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BACKBURNER_", "LLAMA_"))
    }
    quiet = {"OPENBLAS_NUM_THREADS": "1", "MLX_DISABLE_COMPILE": "1", "HF_HUB_OFFLINE": "1"}
    # Where the spill goes by default (on Linux): not among the files of whoever runs the tests.
    quiet["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"backburner-tests-{os.getuid()}")
    return kept | quiet | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | extra


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "backburner", *arguments]


def run(
    *arguments: str, timeout_s: float = 60.0, cwd: Path = ROOT, **extra: str
) -> "subprocess.CompletedProcess[str]":
    """A command that is expected to end by itself."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(**extra),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


def until(
    condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "it did not come to pass"
) -> Any:
    """Polls until the condition is true, and gives its value."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} (within {timeout_s:g} s)"
        time.sleep(0.02)
    return value


class Process:
    """A running command whose output goes to a file, so that no pipe can fill up and block it."""

    def __init__(self, arguments: Sequence[str], cwd: Path = ROOT, **extra: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._popen = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(**extra),
            cwd=cwd,  # `python -m` looks there first
            # A Ctrl-C meant for pytest must not reach it, or the logs would show an end that no test made.
            start_new_session=True,
        )
        self.pid = self._popen.pid

    @property
    def output(self) -> str:
        return os.pread(self._log.fileno(), 2**24, 0).decode(errors="replace")

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def expect(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Waits for a line that matches."""
        end = time.monotonic() + timeout_s
        while (match := re.search(pattern, self.output)) is None:
            assert self.running, f"it ended with status {self._popen.returncode}:\n{self.output}"
            assert time.monotonic() < end, f"no {pattern!r} within {timeout_s:g} s:\n{self.output}"
            time.sleep(0.05)
        return match

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """The exit status."""
        return self._popen.wait(timeout_s)

    def stop(self) -> None:
        """Ends it, politely first, and shows what it wrote: pytest prints that for a failed test only."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self.wait()
        print(f"--- {self._popen.args}, status {self._popen.returncode}:\n{self.output}")
        self._log.close()


class Server(Process):
    """`backburner serve` on a free port."""

    url = ""

    def wait_until_ready(self) -> None:
        self.url = self.expect(r"ready at (http://[\d.:]+)/v1")[1]

    def health(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as e:
            return dict(json.load(e))

    def until_idle(self) -> None:
        until(lambda: self.health()["queue"] == {"running": 0, "waiting": 0}, what="the engine is not free")

    def client(self) -> openai.OpenAI:
        # No retries: they would hide the very errors that the tests look for.
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def worker(self) -> psutil.Process:
        """The loopback worker's process."""
        (child,) = psutil.Process(self.pid).children()
        return child


@contextmanager
def serve(*arguments: str, cwd: Path = ROOT, **extra: str) -> Iterator[Server]:
    server = Server(["serve", "--port", "0", *arguments], cwd, **extra)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@contextmanager
def worker(port: int = 0, *arguments: str) -> Iterator[tuple[Process, int]]:
    """`backburner worker` on loopback, and its port."""
    process = Process(["worker", "--listen", f"127.0.0.1:{port}", "--name", "tested", *arguments])
    try:
        yield process, int(process.expect(r"listening on 127\.0\.0\.1:(\d+)\n")[1])
    finally:
        process.stop()


def messages(filler: int = 24, question: str = QUESTION, fact: str = FACT) -> list[dict[str, str]]:
    """A fact, filler that pushes it far out of tiny's window (18 tokens each), and the question."""
    return [{"role": "system", "content": fact + FILLER * filler}, {"role": "user", "content": question}]


def ask(server: Server, filler: int = 24, **options: Any) -> str:
    """The answer's text, not streamed."""
    answer = server.client().chat.completions.create(model=MODEL, messages=messages(filler), **options)
    return answer.choices[0].message.content or ""


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
