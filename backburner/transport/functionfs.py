"""The gadget's end of a bulk link: a Linux FunctionFS folder, and the sessions of the host on its cable."""

import contextlib
import errno
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from backburner.errors import ConfigError, LinkClosed, LinkTimeout
from backburner.transport.cable import GADGET_INTERFACE
from backburner.transport.frames import Buffer
from backburner.transport.transfers import READ_BYTES, Mark, into_transfers, unpack_mark

log = logging.getLogger("backburner.transport")

PREFIX = "ffs:"

# linux/usb/functionfs.h
_DESCRIPTORS_V2, _STRINGS = 3, 2
_HAS_FULL, _HAS_HIGH, _HAS_SUPER = 1, 2, 4
_EVENT = struct.Struct("<BBHHHBxxx")  # a control request, then the event's type
_SETUP_EVENT = 4
_DIRECTION_IN = 0x80

# ep1 is from host to gadget, ep2 back: in the order of the descriptors, whatever addresses the controller gives them.
_OUT, _IN = 0x01, 0x82
_PACKETS = {"full": 64, "high": 512, "super": 1024}
_BURST = 15  # packets in a row at SuperSpeed

# What the host may send ahead of what the worker has read, and the worker ahead of the host.
QUEUE_BYTES = 4 * 1024 * 1024

# While the cable is out, reads fail at once on some controllers.
RETRY_S = 0.1


def descriptors() -> bytes:
    """What is written to ep0 first: one interface of two bulk endpoints, at each speed."""
    interface = struct.pack("<BBBBBBBBB", 9, 4, 0, 0, 2, *GADGET_INTERFACE, 1)

    def endpoints(packet: int, companion: bytes = b"") -> bytes:
        return b"".join(struct.pack("<BBBBHB", 7, 5, a, 2, packet, 0) + companion for a in (_OUT, _IN))

    body = b"".join(
        (
            struct.pack("<III", 3, 3, 5),
            interface + endpoints(_PACKETS["full"]),
            interface + endpoints(_PACKETS["high"]),
            interface + endpoints(_PACKETS["super"], struct.pack("<BBBBH", 6, 0x30, _BURST, 0, 0)),
        )
    )
    return struct.pack("<III", _DESCRIPTORS_V2, 12 + len(body), _HAS_FULL | _HAS_HIGH | _HAS_SUPER) + body


def strings() -> bytes:
    """What is written to ep0 next: the interface's name, in English."""
    body = struct.pack("<H", 0x0409) + b"Backburner\0"
    return struct.pack("<IIII", _STRINGS, 16 + len(body), 1, 1) + body


def listen(folder: str) -> "GadgetDoor":
    """Describes the function in a mounted FunctionFS folder. Raises ConfigError with what to do."""
    path = Path(folder)
    files: list[int] = []
    try:
        files.append(os.open(path / "ep0", os.O_RDWR))
        os.write(files[0], descriptors())
        os.write(files[0], strings())
        files.append(os.open(path / "ep1", os.O_RDONLY))
        files.append(os.open(path / "ep2", os.O_WRONLY))
    except OSError as error:
        for file in files:
            os.close(file)
        raise ConfigError(
            f"cannot listen at {PREFIX}{folder}: {error}; mount FunctionFS there (docs/operations.md, 'A Linux gadget')"
        ) from None
    control, out, back = files
    threading.Thread(target=serve_control, args=(control,), name="ep0", daemon=True).start()
    return GadgetDoor(
        lambda: os.read(out, READ_BYTES), lambda data: os.write(back, data), f"{PREFIX}{folder}", control
    )


def serve_control(control: int) -> None:
    """Refuses the control requests to our interface: it has none. Ends with the function."""
    with contextlib.suppress(OSError):
        while data := os.read(control, _EVENT.size):
            if len(data) < _EVENT.size:
                continue
            *request, kind = _EVENT.unpack(data)
            log.debug("gadget event %d", kind)
            if kind == _SETUP_EVENT:
                # Input or output in the wrong direction is how FunctionFS is told to stall.
                with contextlib.suppress(OSError):
                    if request[0] & _DIRECTION_IN:
                        os.read(control, 0)
                    else:
                        os.write(control, b"")


class GadgetDoor:
    """Sessions of the host on the cable, one at a time. Implements `channel.Door`.

    FunctionFS has no deadlines and no poll on its endpoints: a thread reads all the time, and one writes.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        write: Callable[[bytes], int],
        address: str,
        control: int | None = None,
    ) -> None:
        """read: one transfer; write: one transfer. control: kept open, for closing it ends the function."""
        self.address = address
        self._read = read
        self._write = write
        self._control = control
        self.changed = threading.Condition()
        self.current: GadgetChannel | None = None
        self._arrived: GadgetChannel | None = None  # not yet accepted
        self._closed = False
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        for target in (self._read_all, self._write_all):
            threading.Thread(target=target, name=address, daemon=True).start()

    def accept(self, timeout_s: float | None = None) -> "GadgetChannel":
        with self.changed:
            self.changed.wait_for(lambda: self._closed or self._arrived is not None, timeout_s)
            if self._closed:
                raise LinkClosed(f"no longer listening at {self.address}")
            if self._arrived is None:
                raise LinkTimeout(f"no host called at {self.address} within {timeout_s:g} s")
            channel, self._arrived = self._arrived, None
            return channel

    def close(self) -> None:
        with self.changed:
            self._closed = True
            if self.current is not None:
                self.current.over = True
            self.changed.notify_all()

    def put(self, transfers: Sequence[bytes], channel: "GadgetChannel", deadline: float) -> None:
        """Queues transfers of a session, each when there is room."""
        for transfer in transfers:
            with self.changed:
                while channel is self.current and not channel.over and self._outgoing_bytes > QUEUE_BYTES:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise LinkTimeout(f"{channel.peer} did not take a byte in time")
                    self.changed.wait(left)
                if channel is not self.current or channel.over:
                    raise LinkClosed(f"the session with {channel.peer} is over")
                self._queue(transfer)

    def end(self, channel: "GadgetChannel") -> None:
        """This side ends a session."""
        with self.changed:
            if channel is self.current and not channel.over:
                self._queue(Mark("end", channel.nonce).pack())
            channel.over = True
            self.changed.notify_all()

    def _queue(self, transfer: bytes) -> None:
        self._outgoing.append(transfer)
        self._outgoing_bytes += len(transfer)
        self.changed.notify_all()

    def _read_all(self) -> None:
        while not self._closed:
            try:
                transfer = self._read()
            except OSError as error:
                if error.errno == errno.EBADF:
                    return
                # The cable is out, or the host has reset the device.
                with self.changed:
                    self._end_current()
                    self.changed.wait(RETRY_S)
                continue
            with self.changed:
                self._take(transfer)

    def _take(self, transfer: bytes) -> None:
        mark = unpack_mark(transfer)
        current = self.current
        if mark is not None and mark.kind == "open":
            self._end_current()
            self.current = self._arrived = GadgetChannel(self, mark.nonce)
            self._queue(Mark("answer", mark.nonce).pack())
        elif current is None or current.over:
            return  # of a session that is over
        elif mark is not None:
            if mark == Mark("end", current.nonce):
                current.over = True
                self.changed.notify_all()
        elif transfer:
            current.incoming.append(memoryview(transfer))
            current.incoming_bytes += len(transfer)
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: self._closed or current.over or current.incoming_bytes <= QUEUE_BYTES
            )

    def _end_current(self) -> None:
        """What was queued for the old session goes to nobody."""
        if self.current is not None:
            self.current.over = True
        self.current = self._arrived = None
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self.changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._closed or bool(self._outgoing))
                if not self._outgoing:
                    return
                transfer = self._outgoing.popleft()
                self._outgoing_bytes -= len(transfer)
                self.changed.notify_all()
            try:
                self._write(transfer)
            except OSError as error:
                if error.errno == errno.EBADF or self._closed:
                    return
                with self.changed:
                    self._end_current()
                    self.changed.wait(RETRY_S)


class GadgetChannel:
    """One session of the host. Implements `channel.Channel`; its state is guarded by the door's `changed`."""

    peer = "usb host"

    def __init__(self, door: GadgetDoor, nonce: bytes) -> None:
        self.nonce = nonce
        self.over = False
        self.incoming: deque[memoryview] = deque()
        self.incoming_bytes = 0
        self._door = door

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        self._door.put(list(into_transfers(parts)), self, deadline)
        return sum(map(len, parts))

    def recv_into(self, space: memoryview, deadline: float) -> int:
        with self._door.changed:
            while not self.incoming:
                if self.over:
                    return 0
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LinkTimeout(f"{self.peer} did not send a byte in time")
                self._door.changed.wait(left)
            first = self.incoming.popleft()
            count = min(len(space), len(first))
            space[:count] = first[:count]
            if count < len(first):
                self.incoming.appendleft(first[count:])
            self.incoming_bytes -= count
            self._door.changed.notify_all()
            return count

    def close(self) -> None:
        self._door.end(self)
