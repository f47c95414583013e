"""A coverage-guided fuzzer of the frame reader, where atheris installs: python atheris_frames.py FOLDER

Starts from the golden frames; anything but a ProtocolError is a finding. Options are libFuzzer's, for example
-max_total_time=60. FOLDER keeps the inputs that reached new code.
"""

import contextlib
import struct
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["backburner"]):
    from backburner.errors import ProtocolError
    from backburner.transport.codec import decode, encode
    from backburner.transport.frames import HEADER, FrameReader, body_check

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "frames"
BODY_MAX = 2**20


def read(data: bytes) -> None:
    reader = FrameReader(BODY_MAX)
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        reader.filled(count)
        while (frame := reader.next_frame()) is not None:
            encode(decode(*frame), frame.header.tag)


def one_input(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read(data)
    # The same bytes with lengths and check put right: blind mutation seldom gets past those.
    if len(data) > HEADER.size:
        head, rest = bytearray(data[: HEADER.size]), data[HEADER.size :]
        meta_len = min(struct.unpack_from("<I", head, 12)[0] % 512, len(rest))
        struct.pack_into("<IQ", head, 12, meta_len, len(rest) - meta_len)
        check = body_check(rest[:meta_len], [rest[meta_len:]]) if head[6] & 1 else 0
        struct.pack_into("<Q", head, 24, check)
        with contextlib.suppress(ProtocolError):
            read(bytes(head) + rest)


if __name__ == "__main__":
    atheris.Setup([*sys.argv, str(VECTORS)], one_input)
    atheris.Fuzz()
