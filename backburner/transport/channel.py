"""What a link needs of its byte stream, and that over any stream socket."""

import contextlib
import socket
import struct
import time
from collections.abc import Sequence
from typing import Protocol

from backburner.errors import LinkClosed, LinkTimeout
from backburner.transport.frames import Buffer

# Linux and macOS both refuse a gather of more than 1,024 parts.
PARTS_MAX = 1024

# How far the kernel's timeout may lie from the time that is left before it is set anew. Setting it costs
# 0.5 us; asking poll() before each read instead, as Python's own settimeout does, costs 1.5 us.
TIMEOUT_SLACK = 0.1


class Channel(Protocol):
    """A reliable byte stream with deadlines, in terms of time.monotonic()."""

    peer: str  # who is at the other end, for messages

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        """Sends all of all parts and says how many bytes they were, or raises LinkTimeout or LinkClosed."""
        ...

    def recv_into(self, space: memoryview, deadline: float) -> int:
        """Reads at least one byte, or 0 at the end of the stream; LinkTimeout at the deadline."""
        ...

    def close(self) -> None:
        """Ends the stream in both directions and wakes whoever waits in it. May be called twice."""
        ...


class SocketChannel:
    """A connected stream socket: TCP, Unix or what usbmuxd hands over."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        sock.setblocking(True)
        self._sock = sock
        self._timeouts = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        left = total = sum(map(len, parts))
        try:
            while True:
                self._limit(socket.SO_SNDTIMEO, deadline)
                try:
                    sent = self._sock.sendmsg(parts if len(parts) <= PARTS_MAX else parts[:PARTS_MAX])
                except BlockingIOError:
                    continue
                left -= sent
                if not left:
                    return total
                parts = _after(parts, sent)
        except OSError as error:
            raise LinkClosed(f"{self.peer} is gone: {error}") from None

    def recv_into(self, space: memoryview, deadline: float) -> int:
        while True:
            try:
                # Inside, because macOS refuses options on a socket whose peer is gone.
                self._limit(socket.SO_RCVTIMEO, deadline)
                return self._sock.recv_into(space)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return 0
            except OSError as error:
                raise LinkClosed(f"{self.peer} is gone: {error}") from None

    def close(self) -> None:
        # Shut down only: the descriptor lives until the last reference to this object is gone, so that a
        # thread on its way into a system call cannot meet a number that someone else was given meanwhile.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._sock.close()

    def _limit(self, option: int, deadline: float) -> None:
        """Bounds the next system call by the time left, or raises LinkTimeout if none is."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise LinkTimeout(f"{self.peer} did not move a byte in time")
        if abs(self._timeouts[option] - left) > TIMEOUT_SLACK * left:
            self._timeouts[option] = left
            seconds = int(left)
            # Both zero would mean forever.
            microseconds = max(int((left - seconds) * 1e6), 1)
            self._sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, microseconds))


def _after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of the parts when their first `sent` bytes are gone."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
