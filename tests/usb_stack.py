"""A real usbmuxd on a bus where phones are emulated (tests/phone.py), in a mount namespace of its own."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from backburner.errors import TransportError
from backburner.transport.usbmux import list_devices
from tests.processes import ROOT, until

PHONE = "00008150000A11223344001C"  # as USB says it
SERIAL = "00008150-000A11223344001C"  # as usbmuxd does
OTHER_PHONE, OTHER_SERIAL = "00008140000B55667788002D", "00008140-000B55667788002D"

SYSTEM_PYTHON = "/usr/bin/python3"
PACKAGES = (
    "umockdev gir1.2-umockdev-1.0 python3-gi libusb-1.0-0 usbmuxd libusbmuxd-tools libimobiledevice-utils"
)
ORDER_S = 30.0  # more than both phones may take to leave


@lru_cache
def missing() -> str | None:
    """Why it cannot be had here, or None."""
    if sys.platform != "linux":
        return "the USB stack is emulated on Linux only"
    if os.geteuid() != 0:
        return "a private /run for usbmuxd needs root"
    tools = [
        name
        for name in ("umockdev-wrapper", "usbmuxd", "unshare", "iproxy", "idevice_id")
        if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    ]
    if tools:
        return f"{', '.join(tools)} not installed: apt-get install {PACKAGES}"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "mount namespaces are not allowed here"
    probe = "import gi; gi.require_version('UMockdev', '1.0'); from gi.repository import UMockdev"
    if subprocess.run([SYSTEM_PYTHON, "-c", probe], capture_output=True).returncode:
        return f"the system's Python has no umockdev: apt-get install {PACKAGES}"
    return None


class UsbStack:
    """Orders to the phones; the daemon listens at `socket`."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.socket = str(folder / "usbmuxd")
        self.environment = {"USBMUXD_SOCKET_ADDRESS": f"UNIX:{self.socket}"}

    @property
    def output(self) -> str:
        said = os.pread(self._log.fileno(), 2**24, 0).decode(errors="replace")
        return "".join(line for line in said.splitlines(True) if "Client" not in line)

    def answers(self) -> bool:
        """Whether the daemon has started: one that still looks at the bus misses what is plugged in meanwhile."""
        try:
            return list_devices(ORDER_S, self.socket) == []
        except TransportError:
            return False

    def plug(self, phone: str = PHONE, location: int = 1) -> None:
        self._order(f"plug {phone} {location}")

    def unplug(self, phone: str = PHONE) -> None:
        self._order(f"unplug {phone}")

    def listen(self, port: int, our_port: int, phone: str = PHONE) -> None:
        """From now on, connections to that port of the phone come to a port of ours."""
        self._order(f"listen {phone} {port} {our_port}")

    def refuse(self, port: int, phone: str = PHONE) -> None:
        self._order(f"refuse {phone} {port}")

    def clear(self) -> None:
        """Pulls all phones."""
        self._order("clear")

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._answered()

    def _answered(self) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ORDER_S)
        said = self._process.stdout.readline() if ready else "nothing in time"
        assert said == "ok\n", f"the phones said {said!r}:\n{self.output}"

    def quit(self) -> None:
        try:
            self._order("quit")
            self._process.wait(ORDER_S)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the session that was made for it
            self._process.wait()


@contextmanager
def usb_stack() -> Iterator[UsbStack]:
    with tempfile.TemporaryDirectory(prefix="usb") as name, tempfile.TemporaryFile() as log:
        command = [
            "umockdev-wrapper",
            SYSTEM_PYTHON,
            str(ROOT / "tests/phone.py"),
            "usbmuxd",
            "-f",
            "-v",
            "-p",
        ]
        environment = dict(os.environ) | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /run && exec "$@"', name, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        stack = UsbStack(process, Path(name), log)
        try:
            stack._answered()
            until(stack.answers, ORDER_S, f"usbmuxd does not start:\n{stack.output}")
            yield stack
        finally:
            stack.quit()
            print(stack.output[-4000:])
