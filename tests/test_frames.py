"""Frames: what is read back is what was written, and lengths are checked before they cost anything."""

import tracemalloc

import numpy as np
import pytest
import xxhash

from backburner.errors import ProtocolError
from backburner.transport.frames import (
    ALIGNMENT,
    FRAME_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    META_MAX,
    READ_AHEAD_BYTES,
    FrameReader,
    aligned,
    allocate_body,
    encode_frame,
    parse_header,
    verify,
)


def header(**changes):
    values = {
        "magic": MAGIC, "version": FRAME_VERSION, "kind": 3, "flags": 0,
        "tag": 1, "meta_len": 0, "body_len": 0, "check": 0,
    } | changes  # fmt: skip
    return HEADER.pack(*values.values())


def feed(reader, data):
    frames = []
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        reader.filled(count)
        while (frame := reader.next_frame()) is not None:
            frames.append(frame)
    return frames


def test_the_header_is_the_documented_32_bytes():
    first = encode_frame(kind=0x21, tag=0x01020304, meta=b"\x80", tensors=[], with_check=False)[0]
    assert HEADER_BYTES == 32
    assert bytes(first).hex() == "424b424e 01 21 0000 04030201 01000000".replace(" ", "") + "00" * 16 + "80"


def test_tensors_start_at_multiples_of_64_and_gaps_are_zero():
    parts = encode_frame(3, 1, b"m", [memoryview(b"a" * 70), memoryview(b"b" * 3)], with_check=True)
    body = b"".join(parts[1:])
    assert body == b"a" * 70 + bytes(58) + b"bbb"
    assert aligned(70) == 128


def test_tensors_are_sent_without_a_copy():
    rows = np.zeros(1000, np.uint8)
    parts = encode_frame(3, 1, b"", [rows.data], with_check=False)
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), rows)


def test_the_check_covers_body_and_meta():
    parts = encode_frame(3, 1, b"meta", [memoryview(b"x" * 65), memoryview(b"y")], with_check=True)
    data = b"".join(parts)
    head, meta, body = parse_header(data), data[32:36], data[36:]
    assert head.check == xxhash.xxh64_intdigest(body, seed=xxhash.xxh64_intdigest(b"meta"))
    verify(head, meta, body)
    for damaged in ((b"mete", body), (meta, body[:-1] + b"z"), (meta, body[:64] + b"!" + body[65:])):
        with pytest.raises(ProtocolError, match="damaged"):
            verify(head, *damaged)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": MAGIC ^ 1}, "not a Backburner frame"),
        ({"version": 2}, "frame version 2, this side reads 1"),
        ({"flags": 2}, "flags"),
        ({"flags": 0x8001}, "flags"),
        ({"check": 1}, "flags"),
        ({"meta_len": META_MAX + 1}, "meta of"),
        ({"body_len": 1001}, "body of 1001 bytes exceeds this connection's limit of 1000"),
        ({"body_len": 2**64 - 1}, "body of"),
    ],
)
def test_a_header_outside_its_limits_is_refused(changes, words):
    with pytest.raises(ProtocolError, match=words):
        parse_header(header(**changes), body_max=1000)


def test_a_short_header_is_refused():
    with pytest.raises(ProtocolError):
        parse_header(header()[:31])


def test_a_hostile_length_allocates_nothing():
    reader = FrameReader(body_max=2**20)
    data = header(body_len=2**40)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            feed(reader, data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_frame_over_the_caps_is_not_written():
    with pytest.raises(ValueError, match="exceeds"):
        encode_frame(3, 1, bytes(META_MAX + 1), [], with_check=False)


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 4097, READ_AHEAD_BYTES, 300_001])
def test_bodies_of_any_size_come_back_whole(size):
    body = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    data = b"".join(encode_frame(3, 9, b"meta", [body.data] if size else [], with_check=True))
    for frame in feed(FrameReader(), data * 3):
        assert frame.header.tag == 9
        assert frame.meta == b"meta"
        assert bytes(frame.body) == body.tobytes()
        verify(*frame)


def test_bodies_past_the_small_size_are_aligned():
    for size in (1, 5000, 100_000):
        address = np.frombuffer(allocate_body(size), np.uint8).ctypes.data
        assert address % ALIGNMENT == 0


def test_frames_do_not_share_memory():
    data = b"".join(encode_frame(3, 1, b"", [memoryview(b"x" * 100)], with_check=False))
    first, second = feed(FrameReader(), data * 2)
    first.body[0] = 0
    assert bytes(second.body) == b"x" * 100


def test_meta_of_the_largest_size_passes_the_staging_buffer():
    data = b"".join(encode_frame(3, 1, bytes(META_MAX), [memoryview(b"b" * 70_000)], with_check=True))
    frames = feed(FrameReader(), b"".join([data, data]))
    assert [len(frame.meta) for frame in frames] == [META_MAX, META_MAX]


def test_a_reader_knows_whether_a_frame_has_begun():
    reader = FrameReader()
    data = b"".join(encode_frame(3, 1, b"m", [memoryview(b"x" * 10_000)], with_check=False))
    assert reader.between_frames
    for piece in (data[:1], data[1:33], data[33:5000]):
        assert not feed(reader, piece)
        assert not reader.between_frames
    assert feed(reader, data[5000:])
    assert reader.between_frames
