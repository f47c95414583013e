"""A small TCP proxy between host and worker that cuts, stalls or damages the stream at a chosen byte, or says so."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from backburner.transport.frames import HEADER, HEADER_BYTES

Direction = Literal["up", "down"]  # from host to worker, and back


@dataclass(frozen=True)
class Fault:
    """What happens to the stream of one direction when `at` bytes have passed.

    With a frame (its kind, and how many of that kind came before), `at` counts from where that frame starts: two
    threads send, so the same frame is elsewhere in each run. `act` only calls the cable's action.
    """

    kind: Literal["cut", "stall", "flip", "act"]
    direction: Direction
    at: int
    bit: int = 0
    frame: tuple[int, int] | None = None

    def __str__(self) -> str:
        place = f"{self.frame[0]}#{self.frame[1]}+{self.at}" if self.frame else str(self.at)
        return f"{self.kind}-{self.direction}-{place}" + (f".{self.bit}" if self.kind == "flip" else "")


class Cable:
    """One connection at a time to `port`, through a port of its own. Each has the fault, until it is healed.

    Frames that a fault counts are those that come while `armed` is set, as it is at first.
    """

    def __init__(
        self, port: int, fault: Fault | None = None, action: Callable[[], None] = lambda: None
    ) -> None:
        self.target = port  # of connections to come
        self.armed = threading.Event()
        self.armed.set()
        self.hit_s: float | None = None  # when the fault came to pass
        self._fault = fault
        self._action = action
        self._frozen = False
        self.passed = {"up": bytearray(), "down": bytearray()}  # of the first connection, for choosing faults
        self._first = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def faulty(self) -> bool:
        return self._fault is not None

    def heal(self) -> None:
        """From now on nothing happens to connections that are made."""
        self._fault = None

    def freeze(self) -> None:
        """From now on everything is accepted and nothing passes."""
        self._frozen = True

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                host, _ = self._listener.accept()
                try:
                    worker = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # nobody is there
                    host.close()
                    continue
                for sock in (host, worker):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._sockets.append(sock)
                record, self._first = self._first, False
                for direction, source, sink in (("up", host, worker), ("down", worker, host)):
                    threading.Thread(
                        target=self._pump, args=(direction, source, sink, self._fault, record), daemon=True
                    ).start()

    def _pump(
        self, direction: str, source: socket.socket, sink: socket.socket, fault: Fault | None, record: bool
    ) -> None:
        stalled = False
        fault = fault if fault is not None and fault.direction == direction else None
        waiting = b""  # a header that is not whole yet: where the fault is depends on it
        found = _Place(fault, self.armed) if fault is not None else None
        with contextlib.suppress(OSError):
            while received := source.recv(2**16):
                if stalled or self._frozen:
                    continue
                data, waiting = waiting + received, b""
                place = None
                if fault is not None and found is not None:
                    data, waiting, place = found.within(data)
                if fault is not None and place is not None:
                    self.hit_s = time.monotonic()
                    if fault.kind == "act":
                        sink.sendall(data[:place])
                        self._action()
                        data = b"" if self._frozen else data[place:]
                    elif fault.kind == "flip":
                        changed = bytearray(data)
                        changed[place] ^= 1 << fault.bit
                        data = bytes(changed)
                    else:
                        sink.sendall(data[:place])
                        if fault.kind == "cut":
                            break
                        stalled = True
                        continue
                sink.sendall(data)
                if record:
                    self.passed[direction] += data
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Place:
    """Follows one stream, to find where its fault is."""

    def __init__(self, fault: Fault, armed: threading.Event) -> None:
        self._fault = fault
        self._armed = armed
        self._at = fault.at if fault.frame is None else None  # in the stream, once it is known
        self._passed = 0
        self._next_frame = 0
        self._before = 0  # frames of the kind

    def within(self, data: bytes) -> tuple[bytes, bytes, int | None]:
        """What may pass, what waits for the rest of its header, and where in the former the fault is, if it is."""
        waits = b""
        while self._at is None and self._next_frame < self._passed + len(data):
            start = self._next_frame - self._passed
            if start + HEADER_BYTES > len(data):
                data, waits = data[:start], data[start:]
                break
            _, _, kind, _, _, meta_len, body_len, _ = HEADER.unpack_from(data, start)
            assert self._fault.frame is not None
            if kind == self._fault.frame[0] and self._armed.is_set():
                if self._before == self._fault.frame[1]:
                    self._at = self._next_frame + self._fault.at
                self._before += 1
            self._next_frame += HEADER_BYTES + meta_len + body_len
        first = self._passed
        self._passed += len(data)
        hit = self._at is not None and first <= self._at < self._passed
        return data, waits, self._at - first if hit and self._at is not None else None


def frames(stream: bytes | bytearray) -> list[tuple[int, int, int, int]]:
    """(kind, start, where the body starts, end) of each frame in a recorded stream."""
    found, at = [], 0
    while at + HEADER_BYTES <= len(stream):
        _, _, kind, _, _, meta_len, body_len, _ = HEADER.unpack_from(stream, at)
        body = at + HEADER_BYTES + meta_len
        found.append((kind, at, body, body + body_len))
        at = body + body_len
    return found
