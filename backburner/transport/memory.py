"""A pair of channels inside one process, for tests and for a worker in the host's own process."""

import time
from collections.abc import Sequence
from threading import Condition

from backburner.errors import LinkClosed, LinkTimeout
from backburner.transport.frames import Buffer

# Small enough that a page does not fit: a sender meets a full pipe here as it would over a cable.
PIPE_BYTES = 256 * 1024


class _Pipe:
    """One direction: a bounded byte queue."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.closed = False
        self.changed = Condition()

    def wait(self, deadline: float) -> None:
        """Waits for the other end to do something. Call with `changed` held."""
        if not self.changed.wait(max(deadline - time.monotonic(), 0)) and time.monotonic() >= deadline:
            raise LinkTimeout("the other end of the memory channel did not move a byte in time")

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class MemoryChannel:
    """One end. Bytes that were sent before a close can still be read, as over a socket."""

    peer = "memory"

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        pipe = self._outgoing
        with pipe.changed:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    if pipe.closed:
                        raise LinkClosed("the memory channel is closed")
                    room = pipe.capacity - len(pipe.data)
                    if not room:
                        pipe.wait(deadline)
                        continue
                    pipe.data += rest[:room]
                    rest = rest[room:]
                    pipe.changed.notify_all()
        return sum([len(part) for part in parts])

    def recv_into(self, space: memoryview, deadline: float) -> int:
        pipe = self._incoming
        with pipe.changed:
            while not pipe.data:
                if pipe.closed:
                    return 0
                pipe.wait(deadline)
            count = min(len(space), len(pipe.data))
            space[:count] = pipe.data[:count]
            del pipe.data[:count]
            pipe.changed.notify_all()
        return count

    def close_sending(self) -> None:
        """Ends one direction: what was sent can still be read there, and then the stream is over."""
        self._outgoing.close()

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


def memory_pair(capacity: int = PIPE_BYTES) -> tuple[MemoryChannel, MemoryChannel]:
    """Two connected ends."""
    there, back = _Pipe(capacity), _Pipe(capacity)
    return MemoryChannel(back, there), MemoryChannel(there, back)
