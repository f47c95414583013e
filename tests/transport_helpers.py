"""Message strategies, message equality and channels good and bad, for the transport's tests."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from backburner.transport import codec, tcp
from backburner.transport import messages as m
from backburner.transport.channel import Channel
from backburner.transport.fields import DTYPES
from backburner.transport.frames import Buffer, FrameReader

LONG_S = 20.0  # a deadline that no test reaches

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**31 - 1)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
key = st.binary(min_size=16, max_size=64)
keys = st.lists(key, max_size=20).map(tuple)
floats = st.floats(allow_nan=False, allow_infinity=False)
dtype = st.sampled_from(list(DTYPES))
dimensions = st.integers(1, 4)
tags = st.integers(1, 2**32 - 1)


@st.composite
def tensor(draw, dims=dimensions, of=dtype):
    """Any tensor of the wire; the bits are arbitrary, NaNs included."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=(n := draw(dims)), max_size=n)))
    return draw(bits(shape, draw(of)))


@st.composite
def bits(draw, shape, name):
    raw = draw(npst.arrays(np.uint8, int(np.prod(shape)) * DTYPES[name].itemsize))
    return raw.view(DTYPES[name]).reshape(shape)


@st.composite
def rows(draw):
    k = draw(tensor(st.just(3)))
    return k, np.flip(k, axis=1)  # not contiguous: encoding has to cope


@st.composite
def partial(draw):
    o = draw(tensor(st.just(3), st.just("float32")))
    return m.PartialReply(o, draw(bits(o.shape[:2], "float32")))


@st.composite
def stacks(draw):
    k = draw(tensor(st.just(4)))
    return k, np.flip(k, axis=2)


@st.composite
def tail_ack(draw):
    logits = draw(st.none() | tensor(st.just(1)))
    ids = None if logits is None else draw(st.none() | bits(logits.shape, "int32"))
    k, v = draw(st.just((None, None)) | stacks())
    return m.TailAck(draw(u32), draw(floats), k, v, draw(st.none() | tensor(st.just(2))), logits, ids)


geometry = st.builds(m.PageGeometry, positive, positive, positive, positive, dtype, floats)
any_message = st.one_of(
    st.builds(m.Hello, u32, words, words, st.binary(max_size=64), geometry, st.lists(u32).map(tuple), words),
    st.builds(m.Welcome, u32, words, words, words, st.lists(words).map(tuple), u64, u64, u64, words, u32),
    st.builds(m.Ping, st.booleans(), st.none() | tensor()),
    st.builds(m.Pong, st.none() | tensor()),
    st.just(m.Stats()),
    st.builds(m.StatsReply, u64, u64, u64, u64, u64, floats, floats),
    st.builds(
        m.StatsReply,
        *[u64] * 5,
        floats,
        floats,
        st.builds(m.BakeState, *[u64] * 6, floats, st.just("none")),
    ),
    st.builds(m.Error, words, words),
    st.just(m.Bye()),
    st.builds(m.PairKeys, words, st.binary(max_size=2048)),
    st.builds(m.Paired, words, st.binary(max_size=2048)),
    st.just(m.Ok()),
    st.builds(m.Have, keys, st.none() | u32),
    st.builds(m.HaveReply, st.binary(max_size=128)),
    st.builds(lambda key, layer, row0, kv: m.PutPage(key, layer, row0, *kv), key, u32, u32, rows()),
    st.builds(m.PageAck, key, u32, u32, st.booleans()),
    st.builds(m.GetPage, key, u32, u32, positive),
    rows().map(lambda kv: m.PageRows(*kv)),
    st.builds(m.DropPages, keys),
    st.builds(m.Bind, u64, keys),
    st.builds(m.Release, u64),
    st.builds(m.Attend, u64, u32, u32, u32, tensor(st.just(3))),
    st.builds(m.AttendAhead, u64, u32, u32, u32, tensor(st.just(3))),
    st.builds(lambda ahead, part: m.FoldOnto(ahead, part.o, part.lse), u32, partial()),
    partial(),
    st.builds(m.TailOpen, u64, u32, u32, st.booleans(), st.binary(max_size=64), positive, keys),
    st.builds(m.TailOpened, u32, st.lists(u32).map(tuple), floats),
    st.builds(m.TailRewind, u64, u32),
    st.builds(lambda sequence, layer, at, kv: m.PutRows(sequence, layer, at, *kv), u64, u32, u32, rows()),
    st.builds(m.PutState, u64, u32, u32, tensor(st.just(3)), tensor(st.just(4))),
    st.builds(
        m.TailChunk,
        u64,
        u32,
        tensor(st.just(2)),
        st.none() | key,
        st.booleans(),
        st.booleans(),
        st.none() | u32,
    ),
    tail_ack(),
    st.builds(m.GetState, u64, u32, u32),
    st.builds(m.StateReply, tensor(), tensor()),
    st.builds(m.NamePages, u64, keys),
)


def same(left: m.Message, right: m.Message) -> bool:
    """Equal in class, fields and every bit of every tensor."""
    if type(left) is not type(right):
        return False
    for field in fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def read_all(data: bytes, piece: int = 2**30, body_max: int = 2**20) -> list[tuple[int, m.Message]]:
    """Every message in a stream that comes `piece` bytes at a time; an incomplete one is left out."""
    reader = FrameReader(body_max)
    found = []
    while data:
        space = reader.space()
        count = min(len(space), len(data), piece)
        space[:count] = data[:count]
        data = data[count:]
        reader.filled(count)
        while (frame := reader.next_frame()) is not None:
            found.append((frame.header.tag, codec.decode(*frame)))
    return found


class FaultyChannel:
    """A channel that reads through another one and, at given points of the stream, does what cables do."""

    def __init__(
        self,
        inner: Channel,
        *,
        cut_after: int | None = None,
        flip_bit: int | None = None,
        stall_after: int | None = None,
        dribble: bool = False,
    ) -> None:
        self.peer = inner.peer
        self._inner = inner
        self._cut_after = cut_after
        self._flip_bit = flip_bit
        self._stall_after = stall_after
        self._dribble = dribble
        self._read = 0

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        return self._inner.send(parts, deadline)

    def recv_into(self, space: memoryview, deadline: float) -> int:
        limit = 1 if self._dribble else len(space)
        if self._cut_after is not None:
            limit = min(limit, self._cut_after - self._read)
            if not limit:
                self._inner.close()
                return 0
        if self._stall_after is not None:
            limit = min(limit, self._stall_after - self._read)
            while not limit:  # nothing arrives any more, until the deadline or a close
                if not self._inner.recv_into(memoryview(bytearray(2**16)), deadline):
                    return 0
        count = self._inner.recv_into(space[:limit], deadline)
        if self._flip_bit is not None and self._read <= self._flip_bit // 8 < self._read + count:
            space[self._flip_bit // 8 - self._read] ^= 1 << self._flip_bit % 8
        self._read += count
        return count

    def close(self) -> None:
        self._inner.close()


@contextmanager
def in_thread(target, *arguments) -> Iterator[threading.Thread]:
    """The target in a thread that must have ended, without an exception, soon after the block."""
    failed = []

    def body():
        try:
            target(*arguments)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    yield thread
    thread.join(LONG_S)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def tcp_pair():
    listener = tcp.listen("127.0.0.1", 0)
    near = tcp.connect("127.0.0.1", listener.port)
    far = listener.accept(LONG_S)
    listener.close()
    return near, far
