"""Writes the golden frames in tests/vectors/frames/, which pytest and XCTest read alike."""

import json
import struct
from typing import Any

import msgpack
import numpy as np

from backburner.transport import messages as m
from backburner.transport.codec import encode
from backburner.transport.fields import DEPTH_MAX
from backburner.transport.frames import FRAME_VERSION, HEADER, MAGIC, META_MAX, body_check
from scripts.vector_files import VECTORS, as_json, write_folder

FOLDER = VECTORS / "frames"

KEY_A = bytes(range(16))
KEY_B = bytes(range(0x80, 0xC0))  # 64 bytes: the longest


def ramp(dtype: str, *shape: int) -> np.ndarray:
    """0, 1, 2 ... as the dtype's own small numbers; for bfloat16 as the bits of those floats."""
    values = np.arange(np.prod(shape)).reshape(shape)
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return values.astype(dtype)


def good() -> dict[str, tuple[int, m.Message]]:
    """Name -> (tag, message). Each message at least once, each optional field both ways, each dtype."""
    geometry = m.PageGeometry(16, 4, 256, 4096, "bfloat16", 0.0625)
    rows = ramp("bfloat16", 2, 3, 4)
    lse = np.array([[0.0, -np.inf, 1.5]], np.float32)
    return {
        "hello": (
            1,
            m.Hello(1, "backburner 0.1.0", "studio", bytes(range(32)), geometry, (3, 7, 11), "numpy"),
        ),
        "welcome": (
            1,
            m.Welcome(
                1, "backburner-ios 0.1.0", "Zoë's phone", "accelerate", ("accelerate", "coreml"),
                6 * 2**30, 5 * 2**30, 300, "none", 64,
            ),
        ),
        "ping_empty": (2, m.Ping()),
        "ping_echo": (0xFFFFFFFF, m.Ping(True, ramp("uint8", 16))),
        "pong_empty": (2, m.Pong()),
        "pong_int32": (0xFFFFFFFF, m.Pong(ramp("int32", 2, 3))),
        "have_layer": (3, m.Have((KEY_A, KEY_B), 3)),
        "have_all_layers": (4, m.Have((KEY_A,))),
        "have_nothing": (5, m.Have(())),
        "have_reply": (3, m.HaveReply(b"\x01\x80")),
        "put_page_bfloat16": (6, m.PutPage(KEY_A, 3, 128, rows, rows)),
        "put_page_float32": (7, m.PutPage(KEY_B, 7, 0, ramp("float32", 1, 8, 2), ramp("float32", 1, 8, 2))),
        "page_ack": (6, m.PageAck(KEY_A, 3, 131, False)),
        "get_page": (8, m.GetPage(KEY_A, 3, 128, 3)),
        "page_rows": (8, m.PageRows(ramp("float16", 2, 3, 4), ramp("float16", 2, 3, 4))),
        "drop_pages": (9, m.DropPages((KEY_A, KEY_B))),
        "bind": (10, m.Bind(2**64 - 1, (KEY_A, KEY_B))),
        "release": (11, m.Release(70000)),
        "ok": (11, m.Ok()),
        "attend": (12, m.Attend(2**64 - 1, 3, 0, 2, ramp("bfloat16", 1, 3, 4))),
        "attend_ahead": (13, m.AttendAhead(2**64 - 1, 3, 2, 1, ramp("bfloat16", 1, 3, 4))),
        "fold_onto": (14, m.FoldOnto(13, ramp("float32", 1, 3, 5), lse)),
        "partial_reply": (12, m.PartialReply(ramp("float32", 1, 3, 5), lse)),
        "tail_open": (15, m.TailOpen(2**64 - 1, 4, 8, True, bytes(range(32)), 256, (KEY_A, KEY_B))),
        "tail_opened": (15, m.TailOpened(512, (256, 512), 1250.5)),
        "tail_rewind": (16, m.TailRewind(7, 256)),
        "put_rows": (17, m.PutRows(7, 7, 256, rows, rows)),
        "put_state": (18, m.PutState(7, 4, 256, ramp("bfloat16", 1, 3, 5), ramp("float32", 1, 2, 3, 4))),
        "tail_chunk_named": (
            19, m.TailChunk(7, 256, ramp("bfloat16", 3, 5), KEY_A, True, True, None)
        ),
        "tail_chunk_top": (20, m.TailChunk(7, 512, ramp("float32", 1, 5), None, False, False, 40)),
        "tail_ack_rows": (
            19,
            m.TailAck(
                259, 0.25, ramp("bfloat16", 2, 2, 3, 4), ramp("bfloat16", 2, 2, 3, 4),
                ramp("bfloat16", 3, 5), None, None,
            ),
        ),
        "tail_ack_top": (
            20, m.TailAck(513, 0.5, None, None, None, ramp("float32", 4)[::-1], ramp("int32", 4))
        ),
        "tail_ack_logits": (21, m.TailAck(514, 0.5, None, None, None, ramp("float32", 6), None)),
        "get_state": (22, m.GetState(7, 4, 512)),
        "state_reply": (22, m.StateReply(ramp("bfloat16", 1, 3, 5), ramp("float32", 1, 2, 3, 4))),
        "name_pages": (23, m.NamePages(7, (KEY_A, KEY_B))),
        "stats": (13, m.Stats()),
        "stats_reply": (13, m.StatsReply(6 * 2**30, 2**30, 300, 2, 12345, 1.25, 3600.5)),
        "stats_reply_bake": (
            15,
            m.StatsReply(
                6 * 2**30, 2**30, 300, 2, 12345, 1.25, 3600.5, m.BakeState(48, 1, 2, 3, 16, 2**31, 0.25, "none")
            ),
        ),
        "error": (14, m.Error("out_of_budget", "page 00010203 does not fit: 64 MiB free of 6 GiB")),
        "bye": (0, m.Bye()),
        "pair_keys": (1, m.PairKeys("studio", bytes(range(256)) * 8)),
        "paired": (1, m.Paired("Zoë's phone", bytes(range(91)))),
    }  # fmt: skip


def bad() -> dict[str, tuple[bytes, str]]:
    """Name -> (frame, what is wrong with it). A reader must refuse each, whatever its words."""
    ping = joined(2, m.Ping(True, ramp("uint8", 16)))
    put = joined(6, good()["put_page_bfloat16"][1])

    def patched(frame: bytes, offset: int, layout: str, value: int) -> bytes:
        raw = struct.pack("<" + layout, value)
        return frame[:offset] + raw + frame[offset + len(raw) :]

    def raw_frame(kind: int, meta: Any, body: bytes = b"") -> bytes:
        packed = meta if isinstance(meta, bytes) else msgpack.packb(meta)
        return HEADER.pack(MAGIC, FRAME_VERSION, kind, 0, 2, len(packed), len(body), 0) + packed + body

    def ping_frame(entry: Any, body: bytes) -> bytes:
        return raw_frame(m.Kind.PING, {"echo": True, "payload": entry}, body)

    partial = {"o": ["float32", [1, 1, 2], 0], "lse": ["float32", [1, 1], 0]}
    return {
        "magic": (patched(ping, 0, "I", 0x12345678), "not the magic number"),
        "frame_version": (patched(ping, 4, "B", 2), "frame version 2"),
        "unknown_kind": (patched(ping, 5, "B", 255), "kind 255"),
        "reserved_kind": (patched(ping, 5, "B", m.Kind.BAKE), "a kind that is only reserved"),
        "unknown_flag": (patched(ping, 6, "H", 2), "flag bit 1"),
        "check_without_flag": (patched(ping, 24, "Q", 1), "check set, its flag not"),
        "meta_over_cap": (patched(ping, 12, "I", META_MAX + 1), "meta longer than its cap"),
        "body_over_cap": (patched(ping, 16, "Q", 2**63), "body longer than its cap"),
        "check_body": (put[:-1] + b"\xff", "a flipped bit in a checked body"),
        "check_absent": (patched(patched(put, 6, "H", 0), 24, "Q", 0), "PutPage without a check"),
        "check_meta": (put.replace(KEY_A, KEY_A[::-1]), "a changed page key under a check"),
        "meta_empty": (raw_frame(m.Kind.OK, b""), "no meta: even Ok has an empty map"),
        "meta_trailing": (raw_frame(m.Kind.OK, b"\x80\x80"), "two objects in the meta"),
        "meta_array": (raw_frame(m.Kind.OK, []), "meta is an array"),
        "meta_ext": (raw_frame(m.Kind.OK, b"\x81\xa1x\xd4\x01\x00"), "an extension type, in an unknown key"),
        "meta_utf8": (raw_frame(m.Kind.OK, b"\x81\xa1\xff\xc0"), "a str that is not UTF-8"),
        "meta_int_key": (raw_frame(m.Kind.OK, b"\x81\x01\x02"), "a map key that is not a str or bin"),
        "meta_long_array": (
            raw_frame(m.Kind.OK, b"\x81\xa1x\xdd\xff\xff\xff\xff"), "an array said to be 2^32 - 1 long"
        ),
        "meta_deep": (
            raw_frame(m.Kind.OK, b"\x81\xa1x" + b"\x91" * DEPTH_MAX + b"\xc0"),
            "17 deep: 16 arrays in each other, in the map",
        ),
        "field_missing": (raw_frame(m.Kind.RELEASE, {}), "Release without sequence"),
        "field_type": (raw_frame(m.Kind.RELEASE, {"sequence": "1"}), "a str for an int"),
        "field_bool": (raw_frame(m.Kind.RELEASE, {"sequence": True}), "a bool for an int"),
        "field_negative": (raw_frame(m.Kind.RELEASE, {"sequence": -1}), "a negative sequence"),
        "key_short": (raw_frame(m.Kind.DROP_PAGES, {"keys": [b"short"]}), "a page key of 5 bytes"),
        "tensor_dtype": (ping_frame(["float64", [1], 0], bytes(8)), "dtype float64"),
        "tensor_outside": (ping_frame(["uint8", [17], 0], bytes(16)), "tensor longer than the body"),
        "tensor_overflow": (ping_frame(["uint8", [2**31 - 1] * 4, 0], bytes(16)), "a shape of 2^124 bytes"),
        "tensor_zero": (ping_frame(["uint8", [0], 0], b""), "a dimension of 0"),
        "tensor_offset": (ping_frame(["uint8", [8], 8], bytes(16)), "offset 8 where 0 belongs"),
        "tensor_trailing": (ping_frame(["uint8", [8], 0], bytes(16)), "8 bytes after the last tensor"),
        "tensor_overlap": (raw_frame(m.Kind.PARTIAL_REPLY, partial, bytes(68)), "two tensors at offset 0"),
        "body_without_tensor": (raw_frame(m.Kind.OK, {}, bytes(4)), "Ok with a body"),
    }  # fmt: skip


def joined(tag: int, message: m.Message) -> bytes:
    """The whole frame."""
    return b"".join(encode(message, tag))


def files() -> dict[str, bytes]:
    """Every file of the folder by name."""
    index: dict[str, list[dict[str, Any]]] = {"good": [], "bad": []}
    out: dict[str, bytes] = {}
    for name, (tag, message) in good().items():
        frame = joined(tag, message)
        out[f"{name}.bin"] = frame
        index["good"].append(
            {
                "file": f"{name}.bin",
                "message": type(message).__name__,
                "kind": frame[5],
                "tag": tag,
                "checked": bool(frame[6]),
                "fields": as_json(message),
            }
        )
    for name, (frame, reason) in bad().items():
        out[f"bad_{name}.bin"] = frame
        index["bad"].append({"file": f"bad_{name}.bin", "reason": reason})
    # A worked example of the check, for whoever writes xxh64 anew.
    index["check"] = [
        {
            "meta": {"hex": meta.hex()},
            "body": {"hex": body.hex()},
            "check": f"{body_check(meta, [body]):016x}",
        }
        for meta, body in ((b"", b""), (b"\x80", b""), (b"\x80", bytes(range(100))))
    ]
    out["index.json"] = (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()
    return out


if __name__ == "__main__":
    write_folder(FOLDER, files())
