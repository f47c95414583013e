"""Phones on a USB cable, through usbmuxd: which there are, when one comes, and a channel to a port of one."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backburner.config import parse_address
from backburner.errors import BackburnerError, ConfigError, LinkClosed, LinkTimeout, ProtocolError
from backburner.transport.channel import SocketChannel
from backburner.transport.tcp import require_loopback
from backburner.transport.usbmux_packets import (
    BAD_COMMAND,
    BAD_VERSION,
    HEADER,
    NO_DEVICE,
    NO_SERVICE,
    OK,
    REFUSED,
    Attached,
    Detached,
    UsbDevice,
    bare,
    pack,
    pack_connect,
    read_devices,
    read_event,
    read_result,
    unpack_body,
    unpack_header,
)

log = logging.getLogger("backburner.transport")

# The daemon answers in a millisecond; a connection goes to the phone and back.
TIMEOUT_S = 5.0

# How often a watch looks for a daemon that is not there: on Linux it starts with the first phone.
DAEMON_RETRY_S = 1.0

Address = str | tuple[str, int]  # of the daemon: a path, or a host and port

NO_PHONE = (
    "no iPhone or iPad is on a USB cable; plug it in, unlock it and tap 'Trust' when it asks whether to trust this "
    "computer"
)


def daemon_address(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Address:
    """Where usbmuxd listens. Raises ConfigError for a USBMUXD_SOCKET_ADDRESS that names no such place."""
    given = environment.get("USBMUXD_SOCKET_ADDRESS")
    if not given:
        return ("127.0.0.1", 27015) if platform in ("win32", "cygwin") else "/var/run/usbmuxd"
    if given.upper().startswith("UNIX:"):
        path = given[len("UNIX:") :]
        if not path or "\0" in path:
            raise ConfigError(f"USBMUXD_SOCKET_ADDRESS={given!r} names no path.")
        return path
    try:
        host, port = parse_address(given)
    except ConfigError:
        raise ConfigError(
            f"USBMUXD_SOCKET_ADDRESS={given!r} is neither UNIX:/path nor HOST:PORT; "
            "unset it to use the system's usbmuxd."
        ) from None
    return require_loopback(host), port


def list_devices(timeout_s: float = TIMEOUT_S, address: Address | None = None) -> list[UsbDevice]:
    """The phones and tablets on USB cables, in no special order. Raises TransportError."""
    with _Conversation(address, timeout_s) as daemon:
        return read_devices(daemon.ask(pack("ListDevices", 1), 1))


def connect(
    device: UsbDevice, port: int, timeout_s: float = TIMEOUT_S, address: Address | None = None
) -> SocketChannel:
    """Opens a channel to what listens at that port of the phone. Raises TransportError with what to do."""
    if not 0 < port < 65536:
        raise ConfigError(f"{port} is not a port.")
    with _Conversation(address, timeout_s) as daemon:
        code = read_result(daemon.ask(pack_connect(device.device_id, port, 1), 1))
        if code != OK:
            raise LinkClosed(_refusal(code, device, port))
        return SocketChannel(daemon.hand_out(), f"usb:{device.serial}")


def choose(devices: list[UsbDevice], serial: str | None = None, last: str | None = None) -> UsbDevice:
    """The phone that is meant: by its serial, or the only one, or, of several, the `last` that was used.

    LinkClosed if it is not there, ConfigError if nobody said which.
    """
    if serial is not None:
        for device in devices:
            if device.bare_serial == bare(serial):
                return device
        there = f"there is {_names(devices)}" if devices else NO_PHONE
        raise LinkClosed(f"the phone with serial {serial} is not on a cable: {there}")
    if not devices:
        raise LinkClosed(NO_PHONE)
    if len(devices) > 1:
        for device in devices:
            if last is not None and device.bare_serial == bare(last):
                return device
        raise ConfigError(
            f"several phones are on cables: {_names(devices)}. Say which: --device usb:{devices[0].serial}"
        )
    return devices[0]


class Phone:
    """One `--device usb`: finds its phone each time anew, since every plugging in has another number."""

    def __init__(self, serial: str | None, port: int, address: Address | None = None) -> None:
        self._serial = serial
        self._port = port
        self._address = address
        self._last: str | None = None

    def find(self) -> UsbDevice:
        """The phone, if it is there. Raises as `choose` and `list_devices` do."""
        return choose(list_devices(address=self._address), self._serial, self._last)

    def connect(self) -> SocketChannel:
        """A channel to the worker on it."""
        device = self.find()
        channel = connect(device, self._port, address=self._address)
        self._last = device.serial
        return channel

    def watch(self, on_attach: Callable[[], None]) -> Callable[[], None]:
        """Calls `on_attach`, from a thread of its own, for each phone that is plugged in. Returns what ends it."""
        watch = _Watch(on_attach, self._address)
        return watch.close


class Listener:
    """Events of phones that come and go: first those that are there already."""

    def __init__(self, timeout_s: float = TIMEOUT_S, address: Address | None = None) -> None:
        """Raises TransportError."""
        self._daemon = _Conversation(address, timeout_s)
        try:
            code = read_result(self._daemon.ask(pack("Listen", 1), 1))
            if code != OK:
                raise LinkClosed(f"usbmuxd refused to tell of phones (code {code}); restart or update it")
        except BaseException:
            self._daemon.close()
            raise

    def next(self, timeout_s: float | None = None) -> Attached | Detached | None:
        """The next event, or None if there is none in time; no limit by default. TransportError at the end."""
        begin = None if timeout_s is None else time.monotonic() + timeout_s
        while self._daemon.readable(begin):
            # An event that has begun has to end.
            _, message = self._daemon.read(time.monotonic() + TIMEOUT_S)
            event = read_event(message)
            if event is not None:
                return event
        return None

    def close(self) -> None:
        """Ends it, and wakes whoever waits in `next`."""
        self._daemon.end()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.close()


class _Watch:
    """A thread that listens, and looks for the daemon while that is away."""

    def __init__(self, on_attach: Callable[[], None], address: Address | None) -> None:
        self._on_attach = on_attach
        self._address = address
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="usbmux", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._listener is not None:
                self._listener.close()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with Listener(address=self._address) as listener:
                    with self._lock:
                        self._listener = listener
                    self._hear(listener)
            except BackburnerError as error:  # such as an address whose name cannot be resolved now
                log.debug("not listening for phones: %s", error)
            finally:
                with self._lock:
                    self._listener = None
            self._closing.wait(DAEMON_RETRY_S)

    def _hear(self, listener: Listener) -> None:
        while not self._closing.is_set():
            if isinstance(listener.next(), Attached) and not self._closing.is_set():
                self._on_attach()


class _Conversation:
    """A socket to the daemon, on which every wait has an end."""

    def __init__(self, address: Address | None, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._sock = _dial(daemon_address() if address is None else address, timeout_s)
        self._handed_out = False

    def ask(self, request: bytes, tag: int) -> dict[str, Any]:
        """The answer to a request, within the time that the conversation was given."""
        with self._bounded(self._deadline):
            self._sock.sendall(request)
        answered, message = self.read(self._deadline)
        if answered != tag:
            raise ProtocolError(f"usbmuxd answered request {answered} instead of {tag}")
        return message

    def read(self, deadline: float) -> tuple[int, dict[str, Any]]:
        """One message and its tag, and not a byte of what follows: that may be the phone's already."""
        length, tag = unpack_header(self._read_exactly(HEADER.size, deadline))
        return tag, unpack_body(self._read_exactly(length, deadline))

    def readable(self, deadline: float | None) -> bool:
        """Waits until something has come, or the end; False at the deadline."""
        try:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            self._sock.settimeout(left)
            self._sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError as error:
            raise LinkClosed(f"usbmuxd hung up: {error}") from None
        return True

    def hand_out(self) -> socket.socket:
        """The socket, once it is a stream to the phone; from now on it is the caller's."""
        self._handed_out = True
        return self._sock

    def end(self) -> None:
        """Wakes whoever reads; the socket is closed by its owner."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if not self._handed_out:
            self._sock.close()

    def __enter__(self) -> "_Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_exactly(self, count: int, deadline: float) -> bytes:
        got = bytearray()
        while len(got) < count:
            with self._bounded(deadline):
                piece = self._sock.recv(count - len(got))
            if not piece:
                raise LinkClosed("usbmuxd hung up; is it being restarted?")
            got += piece
        return bytes(got)

    @contextlib.contextmanager
    def _bounded(self, deadline: float) -> Iterator[None]:
        """Bounds a system call; its errors become ours."""
        late = "usbmuxd does not answer; unplug the phone and plug it in again, or restart usbmuxd"
        try:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LinkTimeout(late)
            self._sock.settimeout(left)
            yield
        except TimeoutError:
            raise LinkTimeout(late) from None
        except OSError as error:
            raise LinkClosed(f"usbmuxd hung up: {error}") from None


def _dial(address: Address, timeout_s: float) -> socket.socket:
    where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    try:
        if not isinstance(address, str):
            sock = socket.create_connection(address, timeout_s)
            # As tcp.py does for a worker's: this becomes the link.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock
    except TimeoutError:
        raise LinkTimeout(f"usbmuxd at {where} does not answer; restart it") from None
    except PermissionError:
        raise LinkClosed(f"this user may not use usbmuxd at {where}; see the rights of that socket") from None
    except (OSError, OverflowError) as error:
        raise LinkClosed(f"usbmuxd does not run at {where} ({error}); {_start_hint()}") from None


def _start_hint(platform: str = sys.platform) -> str:
    if platform == "darwin":
        return "it is a part of macOS: restart the Mac"
    if platform in ("win32", "cygwin"):
        return "install Apple Devices from the Microsoft Store"
    return "it starts when a phone is plugged in; if one is, install usbmuxd (apt install usbmuxd)"


def _refusal(code: int, device: UsbDevice, port: int) -> str:
    """What to do about a connection that the daemon did not make."""
    phone = f"the phone {device.serial}"
    if code == REFUSED:
        return f"nothing listens on port {port} of {phone}; open Backburner on it, and leave it in front"
    if code == NO_DEVICE:
        return f"{phone} is not on the cable any more, or does not trust this computer; plug it in again and unlock it"
    if code == NO_SERVICE:
        return f"{phone} does not let this computer in; unlock it and tap 'Trust' when it asks"
    if code in (BAD_COMMAND, BAD_VERSION):
        return f"usbmuxd does not understand us (code {code}); update it"
    return f"usbmuxd could not connect to {phone} (code {code}); unlock it, trust this computer and plug it in again"


def _names(devices: list[UsbDevice]) -> str:
    return ", ".join(sorted(device.serial for device in devices))
