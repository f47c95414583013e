"""Links to gadgets with a bulk interface of ours: the host's end, over pyusb.

For Linux devices with FunctionFS (`backburner worker --listen ffs:PATH`). An iPhone gives its apps no endpoint; it is
reached through usbmux.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol

from backburner.errors import ConfigError, LinkClosed, LinkTimeout
from backburner.transport import cable
from backburner.transport.frames import Buffer
from backburner.transport.transfers import NONCE_BYTES, READ_BYTES, Mark, into_transfers, unpack_mark

# How long one transfer is waited for before it is looked whether the channel was closed meanwhile.
SLICE_S = 0.2

# How long closing may wait to say so.
FAREWELL_S = 0.2


class Endpoints(Protocol):
    """Two bulk endpoints of one interface. TimeoutError when nothing moved in time, OSError when the device is gone."""

    def write(self, data: bytes, timeout_s: float) -> int:
        """Sends one transfer and says how many of its bytes went."""
        ...

    def read(self, timeout_s: float) -> bytes:
        """What came of one transfer."""
        ...

    def close(self) -> None: ...


class BulkChannel:
    """A session over two bulk endpoints. One thread reads, one sends; any may close."""

    def __init__(self, endpoints: Endpoints, peer: str, timeout_s: float = 5.0) -> None:
        """Begins the session. Raises LinkTimeout or LinkClosed, with the endpoints closed."""
        self.peer = peer
        self._endpoints = endpoints
        self._nonce = os.urandom(NONCE_BYTES)
        self._closed = False
        self._over = False  # the gadget ended the session
        self._left = memoryview(b"")
        self._sending = Lock()
        self._reading = Lock()
        try:
            self._begin(time.monotonic() + timeout_s)
        except OSError as error:
            endpoints.close()
            raise LinkClosed(f"{peer} is gone: {error}") from None
        except BaseException:
            endpoints.close()
            raise

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        total = 0
        with self._sending:
            for transfer in into_transfers(parts):
                rest = memoryview(transfer)
                while rest:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise LinkTimeout(f"{self.peer} did not take a byte in time")
                    if self._closed or self._over:
                        raise LinkClosed(f"the session with {self.peer} is over")
                    with self._errors():
                        # Cut off in the middle, the rest is a transfer of its own: the gadget reads a stream.
                        rest = rest[self._endpoints.write(bytes(rest), min(left, SLICE_S)) :]
                total += len(transfer)
        return total

    def recv_into(self, space: memoryview, deadline: float) -> int:
        with self._reading:
            while not self._left:
                if self._over or self._closed:
                    return 0
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LinkTimeout(f"{self.peer} did not send a byte in time")
                transfer = b""
                with self._errors():
                    transfer = self._endpoints.read(min(left, SLICE_S))
                mark = unpack_mark(transfer)
                if mark is None:
                    self._left = memoryview(transfer)
                elif mark == Mark("end", self._nonce):
                    self._over = True
            count = min(len(space), len(self._left))
            space[:count] = self._left[:count]
            self._left = self._left[count:]
            return count

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # The reader and the sender look at `_closed` after each slice: then the endpoints are nobody's.
        if not self._sending.acquire(timeout=2 * SLICE_S):
            return
        try:
            with contextlib.suppress(OSError):
                if not self._over:
                    self._endpoints.write(Mark("end", self._nonce).pack(), FAREWELL_S)
        finally:
            self._sending.release()
        if self._reading.acquire(timeout=2 * SLICE_S):
            try:
                self._endpoints.close()
            finally:
                self._reading.release()

    def _begin(self, deadline: float) -> None:
        asked, answer = False, Mark("answer", self._nonce)
        while time.monotonic() < deadline:
            # The gadget may wait for its last host to read, before it reads itself: so both, in turns.
            with contextlib.suppress(TimeoutError):
                if not asked:
                    self._endpoints.write(Mark("open", self._nonce).pack(), SLICE_S)
                    asked = True
            with contextlib.suppress(TimeoutError):
                if unpack_mark(self._endpoints.read(SLICE_S if asked else SLICE_S / 4)) == answer:
                    return
        raise LinkTimeout(f"{self.peer} does not answer; start `backburner worker --listen ffs:PATH` on it")

    @contextlib.contextmanager
    def _errors(self) -> Any:
        """A slice that passes without a byte is nothing; a device that is gone ends the link."""
        try:
            yield
        except TimeoutError:
            pass
        except OSError as error:
            raise LinkClosed(f"{self.peer} is gone: {error}") from None


class PyusbEndpoints:
    """A claimed interface of ours."""

    def __init__(self, device: Any) -> None:
        """Raises OSError (usb.core.USBError) when it cannot be claimed."""
        import usb.util

        interface = cable.our_interface(device)
        assert interface is not None, "cable.find_raw gives only gadgets that have one"
        self._device = device
        self._number = interface.bInterfaceNumber
        usb.util.claim_interface(device, self._number)
        addresses = [e.bEndpointAddress for e in interface if e.bmAttributes & 3 == 2]
        self._out = min(addresses)
        self._in = max(addresses)
        self._buffer = usb.util.create_buffer(READ_BYTES)

    def write(self, data: bytes, timeout_s: float) -> int:
        import usb.core

        try:
            return int(self._device.write(self._out, data, _ms(timeout_s)))
        except usb.core.USBTimeoutError as error:
            raise TimeoutError(str(error)) from None

    def read(self, timeout_s: float) -> bytes:
        import usb.core

        try:
            count = self._device.read(self._in, self._buffer, _ms(timeout_s))
        except usb.core.USBTimeoutError as error:
            raise TimeoutError(str(error)) from None
        return memoryview(self._buffer)[:count].tobytes()

    def close(self) -> None:
        import usb.core
        import usb.util

        with contextlib.suppress(usb.core.USBError):
            usb.util.dispose_resources(self._device)


def connect(serial: str | None = None, timeout_s: float = 5.0) -> BulkChannel:
    """A channel to the only gadget, or to the one with that serial. Raises TransportError or ConfigError."""
    found = [_with_serial(raw) for raw in cable.find_raw()]
    gadgets = [(raw, seen) for raw, seen in found if seen.kind == "gadget" and serial in (None, seen.serial)]
    if not gadgets:
        which = "no gadget of ours is" if serial is None else f"the gadget {serial} is not"
        raise LinkClosed(f"{which} on a USB cable; bind it there (docs/operations.md, 'A Linux gadget')")
    if len(gadgets) > 1:
        names = ", ".join(seen.serial or f"one without a serial at bus {seen.bus}" for _, seen in gadgets)
        raise ConfigError(f"several gadgets are on cables: {names}. Say which: --device bulk:SERIAL")
    raw, seen = gadgets[0]
    peer = f"bulk:{seen.serial}" if seen.serial else "bulk"
    try:
        endpoints = PyusbEndpoints(raw)
    except OSError as error:
        raise LinkClosed(
            f"{peer} cannot be opened: {error}; another host has it, or this user has no right to the device (a udev "
            f'rule: SUBSYSTEM=="usb", ATTR{{idVendor}}=="{seen.vendor:04x}", MODE="0660", TAG+="uaccess")'
        ) from None
    return BulkChannel(endpoints, peer, timeout_s)


def _with_serial(raw: Any) -> tuple[Any, cable.Plugged]:
    """A device and its description; a gadget is asked for its serial where the system does not tell it (macOS)."""
    seen = cable.describe(raw)
    if seen.kind == "gadget" and seen.serial is None:
        # Without the right to open the device it stays unknown.
        with contextlib.suppress(OSError, ValueError):
            seen = replace(seen, serial=cable.printable(raw.serial_number or ""))
    return raw, seen


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))  # 0 would mean forever
