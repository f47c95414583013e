"""Damaged frames end in a ProtocolError, in nothing, or in a valid message; never in anything else."""

import tracemalloc
from dataclasses import fields

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backburner.errors import ProtocolError
from backburner.transport import codec
from backburner.transport import messages as m
from backburner.transport.fields import pack_meta, unpack_meta
from backburner.transport.frames import FLAG_CHECK, FRAME_VERSION, HEADER, MAGIC, FrameReader, body_check
from tests.transport_helpers import any_message, dtype, read_all, same

BODY_MAX = 2**20
# One hostile frame may cost a body of the connection's limit and 1,024 nested arrays of 1,024 pointers.
MEMORY_MAX = BODY_MAX + 12 * 2**20


def survive(data, piece=2**30):
    """The messages in the data; whatever they are, they encode again."""
    try:
        found = read_all(data, piece, BODY_MAX)
    except ProtocolError:
        return []
    for tag, message in found:
        codec.encode(message, tag)
    return [message for _, message in found]


def frame(kind, meta, body):
    """With a check, which may be on any message: what is behind it is what these tests are after."""
    check = body_check(meta, [body])
    return HEADER.pack(MAGIC, FRAME_VERSION, kind, FLAG_CHECK, 1, len(meta), len(body), check) + meta + body


@given(any_message)
def test_every_truncation_is_incomplete_and_nothing_else(message):
    data = b"".join(codec.encode(message, 1))
    step = max(len(data) // 100, 1)
    for cut in {*range(0, len(data), step), *range(min(len(data), 100)), len(data) - 1}:
        assert read_all(data[:cut]) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_message, st.data())
def test_every_flipped_bit_of_the_head_and_any_of_the_rest_is_survived(message, draw):
    data = b"".join(codec.encode(message, 1))
    first = range(min(8 * len(data), 8 * 64))
    more = draw.draw(st.sets(st.integers(0, 8 * len(data) - 1), max_size=50))
    for bit in {*first, *more}:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = survive(bytes(damaged))
        # Under a check, what is still read is what was sent (a flipped tag is seen by the link).
        if type(message) in (m.PutPage, m.PageRows) and bit >= 8 * HEADER.size:
            assert not found or same(found[0], message)


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_are_survived(data, piece):
    survive(data, piece)


@settings(max_examples=300)
@given(st.integers(0, 255), st.binary(max_size=80), st.binary(max_size=80))
def test_any_meta_and_body_behind_a_good_header_are_survived(kind, meta, body):
    survive(frame(kind, meta, body))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=70)
names = st.sampled_from(sorted({field.name for message in m.Message.__args__ for field in fields(message)}))
tensors = st.tuples(
    dtype | st.text(max_size=8),
    st.lists(st.integers(-1, 9) | st.integers(0, 2**63), max_size=5),
    st.sampled_from([0, 64, 128, 1, -64, 2**63]),
).map(list)
values = st.recursive(
    scalars | st.text(max_size=20) | tensors,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from([int(kind) for kind in m.Kind])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(kinds, st.dictionaries(names, values, max_size=8), st.binary(max_size=300))
def test_well_formed_meta_with_the_wrong_fields_is_survived(kind, meta, body):
    survive(frame(kind, pack_meta(meta), body))


@settings(max_examples=60)
@given(any_message, names, values)
def test_one_wrong_field_is_survived(message, name, value):
    (found,) = _frames(b"".join(codec.encode(message, 1)))
    fields = unpack_meta(found.meta)
    if name in fields:
        fields[name] = value
        survive(frame(found.header.kind, pack_meta(fields), bytes(found.body)))


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=60), st.integers(0, 255), st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdc\x04\x00"])
)
def test_hostile_lengths_do_not_reserve_memory(start, kind, claim):
    data = frame(kind, b"\x81\xa1x" + claim * 2000 + start, b"")
    huge = HEADER.pack(MAGIC, FRAME_VERSION, kind, 0, 1, 2**32 - 1, 2**64 - 1, 0) + start
    tracemalloc.start()
    try:
        survive(data)
        survive(huge)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def _frames(data):
    reader = FrameReader()
    space = reader.space()
    space[: len(data)] = data
    reader.filled(len(data))
    while (found := reader.next_frame()) is not None:
        yield found
