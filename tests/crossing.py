"""Links that note the messages that a host sends over them, and channels that count the bytes of each kind."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from backburner.transport.channel import Channel
from backburner.transport.frames import HEADER, HEADER_BYTES, Buffer
from backburner.transport.link import Link
from backburner.transport.messages import Kind, Message
from backburner.transport.tcp import connect
from backburner.worker.server import WorkerServer
from tests.host import port_of

M = TypeVar("M")


class WatchedLink(Link):
    """Calls `posted` with each request, before it goes out."""

    def __init__(self, channel: Channel, timeout_s: float, posted: Callable[[Message], None]) -> None:
        super().__init__(channel, timeout_s)
        self._posted = posted

    def post(self, request: Message) -> int:
        self._posted(request)
        return super().post(request)


def watched(server: WorkerServer, posted: Callable[[Message], None], timeout_s: float = 10.0) -> Link:
    return WatchedLink(connect("127.0.0.1", port_of(server)), timeout_s, posted)


def of(messages: Sequence[Message], kind: type[M]) -> list[M]:
    return [m for m in messages if isinstance(m, kind)]


@dataclass
class Counts:
    """Frames and bytes of each kind, as they were on the wire."""

    frames: Counter[Kind] = field(default_factory=Counter)
    bytes: Counter[Kind] = field(default_factory=Counter)
    sizes: list[tuple[Kind, int, int]] = field(default_factory=list)  # (kind, meta, body), in order

    def add(self, kind: int, meta_len: int, body_len: int) -> None:
        self.frames[Kind(kind)] += 1
        self.bytes[Kind(kind)] += HEADER_BYTES + meta_len + body_len
        self.sizes.append((Kind(kind), meta_len, body_len))

    def bodies(self, kind: Kind) -> list[int]:
        return [body for k, _, body in self.sizes if k == kind]

    @property
    def total(self) -> int:
        return self.bytes.total()


class Meter:
    """A channel that counts what passes through another one, from the headers in both streams."""

    def __init__(self, channel: Channel) -> None:
        self.peer = channel.peer
        self.sent, self.received = Counts(), Counts()
        self._channel = channel
        self._pending = bytearray()  # of a received header
        self._skip = 0  # of the received frame's meta and body

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        _, _, kind, _, _, meta_len, body_len, _ = HEADER.unpack_from(parts[0])
        count = self._channel.send(parts, deadline)
        assert count == HEADER_BYTES + meta_len + body_len, "a frame goes out in one call"
        self.sent.add(kind, meta_len, body_len)
        return count

    def recv_into(self, space: memoryview, deadline: float) -> int:
        count = self._channel.recv_into(space, deadline)
        self._follow(bytes(space[:count]))
        return count

    def _follow(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            skipped = min(self._skip, len(data) - at)
            self._skip -= skipped
            at += skipped
            taken = data[at : at + HEADER_BYTES - len(self._pending)]
            self._pending += taken
            at += len(taken)
            if len(self._pending) == HEADER_BYTES:
                _, _, kind, _, _, meta_len, body_len, _ = HEADER.unpack(self._pending)
                self.received.add(kind, meta_len, body_len)
                self._skip = meta_len + body_len
                self._pending.clear()

    def close(self) -> None:
        self._channel.close()

    def reset(self) -> None:
        self.sent, self.received = Counts(), Counts()
