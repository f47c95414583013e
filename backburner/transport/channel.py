"""What a link needs of its byte stream, and that over any stream socket."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from backburner.errors import LinkClosed, LinkTimeout
from backburner.transport.frames import Buffer

# Linux and macOS both refuse a gather of more than 1,024 parts.
PARTS_MAX = 1024

# How far the kernel's timeout may lie from the time that is left before it is set anew. Setting it costs
# 0.5 us; asking poll() before each read instead, as Python's own settimeout does, costs 1.5 us.
TIMEOUT_SLACK = 0.1

# How long a read looks for bytes before it blocks. Waking a thread on another core costs more than all our
# code: 16-byte round trips between two cores took 55 to 70 us without and 22 us with it (loopback in a virtual
# machine). Each look yields the core, in case the other side waits for this very one: on one core, and between
# two threads, 28 us became 29; without yielding, 131.
POLL_S = 50e-6


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


class Door(Protocol):
    """Where hosts come in."""

    address: str  # for people, and for the host's --device

    def accept(self, timeout_s: float | None = None) -> Channel:
        """The next caller; LinkTimeout if none comes in time, LinkClosed once `close` was called.

        OSError if this caller could not be taken; the next one may be.
        """
        ...

    def close(self) -> None:
        """Lets nobody in any more, and wakes whoever waits in `accept`."""
        ...


class SocketChannel:
    """A connected stream socket: TCP, Unix or what usbmuxd hands over."""

    def __init__(self, sock: socket.socket, peer: str, poll_s: float = POLL_S) -> None:
        self.peer = peer
        sock.setblocking(True)
        self._sock = sock
        self._poll_s = poll_s
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
        try:
            poll_end = min(time.monotonic() + self._poll_s, deadline)
            while time.monotonic() < poll_end:
                try:
                    return self._sock.recv_into(space, 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    _yield_core()
            while True:
                # macOS refuses options on a socket whose peer is gone, hence within the try.
                self._limit(socket.SO_RCVTIMEO, deadline)
                try:
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


# Not every Unix has it in Python; a sleep of 0 is a system call that lets others run, too.
_yield_core = getattr(os, "sched_yield", partial(time.sleep, 0))


def _after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of the parts when their first `sent` bytes are gone."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
