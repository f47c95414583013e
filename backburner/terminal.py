"""What a person sees: start-up stages with Rich on a terminal, plain lines when piped, and the log."""

import logging
import os
import signal
import time
from types import FrameType, TracebackType

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.status import Status

from backburner.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")

# Rich knows :ab: and :100: as emoji, and IPv6 as addresses.
console = Console(stderr=True, highlight=False, emoji=False)


def configure_logging(level: str) -> None:
    """Our log on standard error at `level`; libraries only from warnings on, unless debugging. Raises ConfigError."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r} is not one of {', '.join(LEVELS)}.")
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(
            console=console, show_path=False, rich_tracebacks=False, log_time_format="%H:%M:%S"
        )
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(
        level=logging.DEBUG if level == "debug" else logging.WARNING, handlers=[handler], force=True
    )
    logging.getLogger("backburner").setLevel(level.upper())
    for name in ("httpx", "urllib3", "filelock", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # transformers warns about config keys that only mlx-lm reads, and sets its own level when it is imported.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def end_at_once_on_signals() -> None:
    """For start-up, which has nothing to save: SIGINT and SIGTERM end the process there and then.

    Python's own way, an exception in the main thread, is lost now and then in a library that is being imported, and
    the server would start all the same. A loopback worker follows by its pipe.
    """

    def end(number: int, frame: FrameType | None) -> None:
        console.show_cursor(True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


EXAMPLE = """curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is Backburner?"}}]}}'"""

# What the embedded model can answer, and shows: about us, an exact copy, and a fact from a text.
TINY_QUESTIONS = (
    "What is a held page?",
    "Return JSON with name Maria, city Oslo and age 31.",
    "The code of the blue gate is 4821. The river was calm. What is the code of the blue gate?",
)


class StartReport:
    """Implements `engine.startup.Report`: one line for each stage, with its time."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._name = ""
        self._start = 0.0

    def __enter__(self) -> "StartReport":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stop()

    def stage(self, name: str) -> None:
        self._stop()
        self._name, self._start = name, time.monotonic()
        if console.is_terminal:
            self._status = console.status(f"{escape(name)} ...")
            self._status.start()

    def progress(self, done: int, total: int) -> None:
        if self._status is not None:
            self._status.update(f"{escape(self._name)}: layer {done} of {total}")

    def done(self, text: str) -> None:
        self._stop()
        console.print(
            f"[green]ok[/] [bold]{escape(self._name)}[/] ({time.monotonic() - self._start:.1f} s): {escape(text)}",
            soft_wrap=True,
        )

    def note(self, text: str) -> None:
        console.print(f"   {text}", soft_wrap=True, markup=False)

    def ready(self, url: str, local_url: str, model: str, wants_key: bool, embedded: bool) -> None:
        """The last line of start-up, with a command to paste. A key is never shown: output is kept and passed on."""
        where = escape(url)
        console.print(
            f"[green]ready[/] at {where}/v1 (model {escape(model)}, health at {where}/health). Try:",
            soft_wrap=True,
        )
        key = "-H 'Authorization: Bearer YOUR-API-KEY' " if wants_key else ""
        console.print(EXAMPLE.format(url=local_url, model=model, key=key), soft_wrap=True, markup=False)
        if embedded:
            console.print(
                "   `tiny` is a demonstration model of 5.6 million parameters; --model serves a real one. Ask it:",
                soft_wrap=True,
            )
            for question in TINY_QUESTIONS:
                console.print(f"   - {question}", soft_wrap=True, markup=False)

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
