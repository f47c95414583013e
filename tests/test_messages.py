"""Messages: the round trip of each, the golden vectors, and refusal of whatever is not quite right."""

import importlib.util
import json
import tracemalloc
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given

from backburner.errors import ProtocolError
from backburner.transport import codec
from backburner.transport import messages as m
from backburner.transport.fields import DEPTH_MAX, ITEMS_MAX, STRING_MAX
from backburner.transport.frames import FLAG_CHECK, HEADER_BYTES, Header, body_check, parse_header
from tests.transport_helpers import any_message, read_all, same, tags

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "vectors" / "frames"
INDEX = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
KEY = bytes(16)


def load_script():
    spec = importlib.util.spec_from_file_location("make_vectors", ROOT / "scripts" / "make_vectors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def decode(kind, meta, body=b""):
    packed = meta if isinstance(meta, bytes) else msgpack.packb(meta)
    check = body_check(packed, [body])
    return codec.decode(Header(kind, FLAG_CHECK, 1, len(packed), len(body), check), packed, body)


@given(any_message, tags)
def test_every_message_survives_the_round_trip(message, tag):
    data = b"".join(codec.encode(message, tag))
    ((got_tag, got),) = read_all(data)
    assert got_tag == tag
    assert same(got, message)
    assert b"".join(codec.encode(got, tag)) == data


@given(any_message, any_message)
def test_a_stream_may_arrive_one_byte_at_a_time(first, second):
    data = b"".join(codec.encode(first, 1) + codec.encode(second, 2))
    (_, got_first), (_, got_second) = read_all(data, piece=1)
    assert same(got_first, first)
    assert same(got_second, second)


def test_the_strategies_and_the_vectors_cover_every_kind_that_is_not_reserved():
    sent = {int(kind) for kind in m.Kind if not 64 <= kind < 80}
    assert {entry["kind"] for entry in INDEX["good"]} == sent
    assert len(m.Message.__args__) == len(sent)


def test_regenerating_the_vectors_gives_the_committed_bytes():
    wanted = load_script().files()
    assert {path.name for path in FOLDER.iterdir()} == set(wanted)
    for name, data in wanted.items():
        assert (FOLDER / name).read_bytes() == data, name


@pytest.mark.parametrize("entry", INDEX["good"], ids=lambda entry: entry["file"])
def test_a_golden_frame_reads_as_its_index_says(entry):
    data = (FOLDER / entry["file"]).read_bytes()
    ((tag, message),) = read_all(data)
    assert tag == entry["tag"]
    assert type(message).__name__ == entry["message"]
    assert load_script().as_json(message) == entry["fields"]
    assert b"".join(codec.encode(message, tag)) == data


@pytest.mark.parametrize("entry", INDEX["bad"], ids=lambda entry: entry["file"])
def test_a_bad_golden_frame_is_refused(entry):
    with pytest.raises(ProtocolError):
        read_all((FOLDER / entry["file"]).read_bytes())


@pytest.mark.parametrize("entry", INDEX["good"], ids=lambda entry: entry["file"])
def test_what_is_stored_does_not_pass_without_a_check(entry):
    data = (FOLDER / entry["file"]).read_bytes()
    head = parse_header(data)._replace(flags=0, check=0)
    meta_end = HEADER_BYTES + head.meta_len
    frame = head, data[HEADER_BYTES:meta_end], data[meta_end:]
    if entry["checked"]:
        with pytest.raises(ProtocolError, match="without a check"):
            codec.decode(*frame)
    else:
        codec.decode(*frame)


def test_unknown_keys_of_the_meta_are_ignored():
    meta = {"new": [1, {"x": None}], "sequence": 7, "newer": b"\x00", "newest": 1.5}
    assert decode(m.Kind.RELEASE, meta) == m.Release(7)


def test_decoded_tensors_are_views_of_the_body():
    body = bytearray(16)
    pong = decode(m.Kind.PONG, {"payload": ["uint8", [16], 0]}, body)
    body[3] = 9
    assert pong.payload[3] == 9


@pytest.mark.parametrize(
    ("kind", "meta", "words"),
    [
        (m.Kind.RELEASE, {}, "Release lacks the field 'sequence'"),
        (m.Kind.RELEASE, {"sequence": 1.0}, "Release.sequence"),
        (m.Kind.RELEASE, {"sequence": False}, "Release.sequence"),
        (m.Kind.BIND, {"sequence": 2**63, "keys": [KEY, 5]}, "Bind.keys"),
        (m.Kind.BIND, {"sequence": 0, "keys": [KEY] * (ITEMS_MAX + 1)}, "meta"),
        (m.Kind.BIND, {"sequence": 0, "keys": [bytes(15)]}, "16 to 64"),
        (m.Kind.BIND, {"sequence": 0, "keys": [bytes(65)]}, "16 to 64"),
        (m.Kind.BIND, {"sequence": 0, "keys": {}}, "Bind.keys"),
        (m.Kind.ERROR, {"code": "x", "message": b"bytes"}, "Error.message"),
        (m.Kind.ERROR, {"code": "x", "message": "y" * (STRING_MAX + 1)}, "meta"),
        (m.Kind.GET_PAGE, {"key": KEY, "layer": 1, "row0": 0, "rows": 0}, "GetPage.rows"),
        (m.Kind.GET_PAGE, {"key": KEY, "layer": 2**32, "row0": 0, "rows": 1}, "GetPage.layer"),
        (m.Kind.HAVE, {"keys": [], "layer": "all"}, "Have.layer"),
        (m.Kind.STATS_REPLY, dict.fromkeys(m.StatsReply.__slots__, 1), "attend_seconds"),
        (m.Kind.TAIL_OPENED, {"rows": 0, "states": [0, -1], "layer_us": 1.0}, "TailOpened.states"),
        (m.Kind.GET_STATE, {"sequence": 1, "layer": 0, "position": None}, "GetState.position"),
        (255, {}, "kind 255"),
        (m.Kind.BAKE, {}, "kind 64"),
    ],
)
def test_a_field_out_of_type_or_range_is_named(kind, meta, words):
    with pytest.raises(ProtocolError, match=words):
        decode(kind, meta)


def test_not_a_number_is_refused():
    meta = dict.fromkeys(m.StatsReply.__slots__, 1) | {"attend_seconds": float("nan"), "uptime_s": 1.0}
    with pytest.raises(ProtocolError, match="attend_seconds"):
        decode(m.Kind.STATS_REPLY, meta)


@pytest.mark.parametrize(
    "changes",
    [
        {"k": ["float32", [1, 2, 2], 0]},  # v's shape differs
        {"k": ["uint8", [1, 2, 4], 0]},  # v's dtype differs
        {"k": ["uint8", [8], 0], "v": ["uint8", [8], 64]},  # not three-dimensional
    ],
)
def test_k_and_v_must_have_one_shape(changes):
    meta = {"k": ["float32", [1, 1, 2], 0], "v": ["float32", [1, 1, 2], 64]}
    assert decode(m.Kind.PAGE_ROWS, meta, bytes(72)).k.shape == (1, 1, 2)
    with pytest.raises(ProtocolError):
        decode(m.Kind.PAGE_ROWS, meta | changes, bytes(72))


@pytest.mark.parametrize(
    "entry",
    [
        ["float64", [1], 0], ["float32", [3], 0], ["float32", [1, 1, 1, 1, 1], 0], ["float32", [], 0],
        ["float32", [-1], 0], ["float32", [True], 0], ["float32", 1, 0], ["float32", [1], 0, 0],
        ["float32", [1], 4], ["float32", [1], -64], ["float32", [1], 64], ["float32", [1], True],
        ["float32", [1], None], ["float32", [2**31 - 1] * 4, 0], ["float32", [2**62], 0],
        [4, [1], 0], {"dtype": "float32"}, "float32", 0, ["uint8", [4], 0],
    ],
)  # fmt: skip
def test_a_tensor_that_does_not_fit_its_body_is_refused(entry):
    assert decode(m.Kind.PONG, {"payload": ["float32", [2], 0]}, bytes(8)).payload.shape == (2,)
    with pytest.raises(ProtocolError):
        decode(m.Kind.PONG, {"payload": entry}, bytes(8))


def test_nested_arrays_that_claim_a_great_length_reserve_little():
    bomb = b"\x81\xa1x" + b"\xdc\x04\x00" * 5000
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(m.Kind.OK, bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def nested(depth, inner=b"\x91", name=b"\xa1x"):
    """The meta of a Release(7), then a value that is `depth` deep; the map is one more."""
    return b"\x82\xa8sequence\x07" + name + inner * depth + b"\xc0"


def test_unknown_keys_may_be_nested():
    assert decode(m.Kind.RELEASE, nested(DEPTH_MAX - 1)) == m.Release(7)


@pytest.mark.parametrize("depth", [DEPTH_MAX, 1000])
@pytest.mark.parametrize("inner", [b"\x91", b"\x81\xa1x"], ids=["arrays", "maps"])
@pytest.mark.parametrize("name", [b"\xa1x", b"\xa8sequence"], ids=["unknown key", "field"])
def test_meta_that_is_nested_deeper_than_any_message_is_refused(name, inner, depth):
    """By name: 1,000 arrays in a field were a RecursionError where its value was shown."""
    with pytest.raises(ProtocolError, match="nested more than 16 deep"):
        decode(m.Kind.RELEASE, nested(depth, inner, name))


@pytest.mark.parametrize(
    "message",
    [
        m.Release(-1),
        m.Release(np.int64(1)),
        m.Release(2**64),
        m.Bind(1, [KEY] * (ITEMS_MAX + 1)),
        m.Bind(1, KEY),
        m.Have([KEY[:3]]),
        m.Error("code", "é" * STRING_MAX),
        m.Pong(np.zeros(3, np.float64)),
        m.Pong(np.zeros((0, 3), np.float32)),
        m.Pong(np.float32(1).reshape(())),
    ],
)
def test_our_own_mistakes_are_found_before_they_are_sent(message):
    with pytest.raises(ValueError):  # noqa: PT011  # the words differ
        codec.encode(message, 1)


def test_messages_with_tensors_check_their_shapes_when_they_are_made():
    with pytest.raises(ValueError, match="partial"):
        m.PartialReply(np.zeros((2, 1, 4), np.float32), np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="partial"):
        m.PartialReply(np.zeros((2, 1, 4), np.float16), np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="q of shape"):
        m.Attend(1, 0, 0, 1, np.zeros((2, 4), np.float32))


def test_the_parts_of_a_tails_messages_must_fit_each_other():
    row, stack = np.zeros((2, 3), np.float32), np.zeros((1, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"\[T, hidden\]"):
        m.TailChunk(1, 0, row[0], None, False, False, None)
    with pytest.raises(ValueError, match="make a state"):
        m.PutState(1, 0, 0, row, stack)
    with pytest.raises(ValueError, match="both"):
        m.TailAck(1, 0.5, stack, None, None, None, None)
    with pytest.raises(ValueError, match="both"):
        m.TailAck(1, 0.5, stack, stack[:, :1], None, None, None)
    with pytest.raises(ValueError, match=r"\[T, hidden\]"):
        m.TailAck(1, 0.5, None, None, stack, None, None)
    with pytest.raises(ValueError, match=r"\[n\]"):
        m.TailAck(1, 0.5, None, None, None, row, None)
    with pytest.raises(ValueError, match="ids"):
        m.TailAck(1, 0.5, None, None, None, row[0], np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="ids"):
        m.TailAck(1, 0.5, None, None, None, None, np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="ids"):
        m.TailAck(1, 0.5, None, None, None, row[0], np.zeros(3, np.float32))


def test_lists_are_sent_as_well_as_tuples():
    assert codec.encode(m.Have([KEY], 1), 1) == codec.encode(m.Have((KEY,), 1), 1)
