"""A worker in a second process on this machine, started by the host and gone with it."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from backburner.errors import LinkClosed, LinkTimeout
from backburner.transport.channel import Channel
from backburner.transport.link import Link
from backburner.transport.tcp import connect

# Importing numpy and binding a port takes 0.3 s; a cold disk may need many times that.
START_DEADLINE_S = 60.0
# It ends at once when its pipe closes, unless it is frozen.
STOP_DEADLINE_S = 2.0

READY_PREFIX = "listening on "  # then HOST:PORT, on the worker's standard output


class LoopbackWorker:
    """Starts `backburner worker` on a free loopback port, anew at each `connect`.

    The child's standard input is a pipe that nobody writes to: when this process ends, however it ends, the pipe
    closes and the worker stops.
    """

    address = "loopback"

    def __init__(
        self,
        memory_bytes: int,
        log_level: str = "warning",
        slowdown: float = 1.0,
        wrap: Callable[[Channel], Channel] | None = None,
        model: str | None = None,
    ) -> None:
        """`wrap` may put another channel around the one to the worker, to shape it. `model`: the worker's --model."""
        self._command = [
            # -P: `-m` alone looks for every module in the current folder first, whatever lies there.
            *(sys.executable, "-P", "-m", "backburner", "worker"),
            *("--listen", "127.0.0.1:0", "--exit-with-parent"),
            *("--memory", str(memory_bytes), "--log-level", log_level, "--name", "loopback"),
            *("--slowdown", repr(slowdown)),
            *(() if model is None else ("--model", model)),
        ]
        self._wrap = wrap
        self._engine = "auto"
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def connector(self, engine: str) -> Callable[[], Link]:
        """`connect`, with the worker on the same attention engine as the host, so that bits are equal too."""
        self._engine = engine
        return self.connect

    def connect(self) -> Link:
        """A link to a new worker. Raises LinkClosed or LinkTimeout.

        One that still runs lost its link by being frozen or far behind. It would stay so, and a new one takes 0.3 s.
        """
        if self._process is not None:
            self._process.kill()
            self.close()
        try:
            self._start()
        except OSError as e:
            raise LinkClosed(f"the loopback worker cannot be started: {e}") from e
        channel: Channel = connect("127.0.0.1", self._port)
        return Link(channel if self._wrap is None else self._wrap(channel))

    def _start(self) -> None:
        # A group of its own: Ctrl-C in the terminal is the host's to handle, the worker follows by its pipe.
        process = subprocess.Popen(
            [*self._command, "--engine", self._engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self._process = process
        assert process.stdout is not None
        line = _read_line(process, START_DEADLINE_S)
        if not line.startswith(READY_PREFIX):
            self.close()
            raise LinkClosed(
                f"the loopback worker did not start (it said {line.strip()!r}); see its messages above."
            )
        self._port = int(line.rpartition(":")[2])

    def close(self) -> None:
        """Stops the worker. Does nothing when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read_line(process: "subprocess.Popen[str]", timeout_s: float) -> str:
    """The child's first line, or LinkTimeout."""
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    reader.join(timeout_s)
    if not lines:
        process.kill()
        raise LinkTimeout(f"the loopback worker did not start within {timeout_s:g} s.")
    return lines[0]


def exit_with_parent() -> None:
    """In the child: ends the process at once when the parent's end of standard input closes."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while sys.stdin.buffer.read(4096):
                pass
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()
