"""The frame: a 32-byte header, a small msgpack map and raw tensors. Bytes in, bytes out, no IO."""

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import xxhash

from backburner.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

# magic u32 | version u8 | kind u8 | flags u16 | tag u32 | meta_len u32 | body_len u64 | check u64
HEADER = struct.Struct("<IBBHIIQQ")
HEADER_BYTES = HEADER.size
MAGIC = int.from_bytes(b"BKBN", "little")
FRAME_VERSION = 1
FLAG_CHECK = 1  # the header's check field is valid
ALIGNMENT = 64

# 1,024 page keys of 64 bytes, the largest meta there is, take 68 KB.
META_MAX = 256 * 1024
# The largest body planned is a recurrent state or a whole page; both are far below.
BODY_MAX = 1024**3

# One recv of this size brings a whole decode step's queries; what it brings of a large body is copied once
# more, 3 us at 64 KiB against 2.6 MB read in place.
READ_AHEAD_BYTES = 64 * 1024

# Up to here a body is a plain bytearray: the aligned buffer takes 1 us more, which a short round trip feels.
SMALL_BODY_BYTES = 4096

_PADDING = bytes(ALIGNMENT)


class Header(NamedTuple):
    """The fixed part of a frame, already checked against the caps.

    A tuple and no dataclass, which would take twice as long to make.
    """

    kind: int
    flags: int
    tag: int
    meta_len: int
    body_len: int
    check: int


class Frame(NamedTuple):
    """One frame as it came; `body` belongs to it alone."""

    header: Header
    meta: bytes
    body: Buffer


def aligned(offset: int) -> int:
    """The first multiple of 64 that is not below the offset."""
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def body_check(meta: bytes, parts: Sequence[Buffer]) -> int:
    """xxh64 of the body, seeded with xxh64 of the meta, so that a flipped bit in a page key is seen too."""
    digest = xxhash.xxh64(seed=xxhash.xxh64_intdigest(meta))
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def encode_frame(
    kind: int, tag: int, meta: bytes, tensors: Sequence[memoryview], with_check: bool
) -> list[Buffer]:
    """Buffers for a gathering send: header with meta, then each tensor and the padding before it."""
    parts: list[Buffer] = []
    end = 0
    for tensor in tensors:
        gap = aligned(end) - end
        if gap:
            parts.append(_PADDING[:gap])
            end += gap
        parts.append(tensor)
        end += tensor.nbytes
    if len(meta) > META_MAX or end > BODY_MAX:
        raise ValueError(f"a frame of {len(meta)} + {end} bytes exceeds {META_MAX} + {BODY_MAX}")
    flags, check = (FLAG_CHECK, body_check(meta, parts)) if with_check else (0, 0)
    head = HEADER.pack(MAGIC, FRAME_VERSION, kind, flags, tag, len(meta), end, check)
    return [head + meta, *parts]


def parse_header(data: Buffer, body_max: int = BODY_MAX, start: int = 0) -> Header:
    """Reads 32 bytes at `start` and checks every field that can be checked before anything is allocated."""
    if len(data) - start < HEADER_BYTES:
        raise ProtocolError(f"a header has {HEADER_BYTES} bytes, got {len(data) - start}")
    magic, version, kind, flags, tag, meta_len, body_len, check = HEADER.unpack_from(data, start)
    if magic != MAGIC:
        raise ProtocolError(f"not a Backburner frame (magic {magic:#010x}); is this the right port?")
    if version != FRAME_VERSION:
        raise ProtocolError(f"the peer sends frame version {version}, this side reads {FRAME_VERSION}")
    if flags & ~FLAG_CHECK or (check and not flags):
        raise ProtocolError(
            f"flags {flags:#06x} with check {check:#x} are not of frame version {FRAME_VERSION}"
        )
    if meta_len > META_MAX:
        raise ProtocolError(f"meta of {meta_len} bytes exceeds the limit of {META_MAX}")
    if body_len > body_max:
        raise ProtocolError(f"body of {body_len} bytes exceeds this connection's limit of {body_max}")
    return Header(kind, flags, tag, meta_len, body_len, check)


def verify(header: Header, meta: bytes, body: Buffer) -> None:
    """Compares the check where the sender gave one."""
    if header.flags & FLAG_CHECK and body_check(meta, [body]) != header.check:
        raise ProtocolError("the frame's check does not match its bytes: it was damaged on the way")


def allocate_body(size: int) -> memoryview:
    """A fresh buffer at a 64-byte boundary. Tensors are views of it, so it is never reused."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    address = raw.ctypes.data
    start = aligned(address) - address
    return raw[start : start + size].data


class FrameReader:
    """Cuts a byte stream into frames. Fill `space()`, say `filled(n)`, then `next_frame()` until it is None.

    Small frames come out of one read; a large body is read straight into its own memory.
    """

    __slots__ = (
        "_body",
        "_body_filled",
        "_body_max",
        "_end",
        "_first_space",
        "_header",
        "_meta",
        "_start",
        "_view",
    )

    def __init__(self, body_max: int = BODY_MAX) -> None:
        self._body_max = body_max
        self._view = memoryview(bytearray(HEADER_BYTES + META_MAX + READ_AHEAD_BYTES))
        self._first_space = self._view[:READ_AHEAD_BYTES]
        self._start = self._end = 0  # the unread part of the staging buffer
        self._header: Header | None = None
        self._meta = b""
        self._body: memoryview | None = None  # set while a body is incomplete
        self._body_filled = 0

    @property
    def between_frames(self) -> bool:
        """Whether no byte of an unfinished frame has come."""
        return self._start == self._end and self._header is None

    def space(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._body is not None:
            return self._body[self._body_filled :]
        if self._start == self._end:
            self._start = self._end = 0
            return self._first_space
        if self._start:
            unread = self._end - self._start
            self._view[:unread] = self._view[self._start : self._end]
            self._start, self._end = 0, unread
        return self._view[self._end : self._end + READ_AHEAD_BYTES]

    def filled(self, count: int) -> None:
        """Says that `count` bytes of the last `space()` are now valid."""
        if self._body is not None:
            self._body_filled += count
        else:
            self._end += count

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None if more bytes are needed."""
        header, body = self._header, self._body
        if header is None:
            if self._end - self._start < HEADER_BYTES:
                return None
            header = parse_header(self._view, self._body_max, self._start)
            self._header = header
            self._start += HEADER_BYTES
        if body is None:
            meta_end = self._start + header.meta_len
            if meta_end > self._end:
                return None
            meta = bytes(self._view[self._start : meta_end])
            staged = self._view[meta_end : min(meta_end + header.body_len, self._end)]
            self._start = meta_end + len(staged)
            if header.body_len <= SMALL_BODY_BYTES and len(staged) == header.body_len:
                self._header = None
                return Frame(header, meta, bytearray(staged))
            body = allocate_body(header.body_len)
            body[: len(staged)] = staged
            self._meta, self._body, self._body_filled = meta, body, len(staged)
        if self._body_filled < header.body_len:
            return None
        self._header, self._body = None, None
        return Frame(header, self._meta, body)
