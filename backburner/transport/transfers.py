"""How a byte stream travels in USB bulk transfers: where a transfer ends, and where a session begins and ends. No IO.

A bulk pipe has no beginning and no end: it is there as long as the cable is, and what one process left unread, the next
one finds. So a host begins a session with a mark that carries a nonce, and discards what it reads until the gadget has
answered with the same nonce; the gadget takes the mark of a new session, wherever it comes, for the end of the old one.

A read ends with a packet that is not full. So no transfer's length is a multiple of the packet's, every read ends
where a transfer ends, and a mark is always read by itself. Stream data is taken for a mark only if a transfer happens
to be of its length and to begin with its 128 random bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from backburner.transport.frames import Buffer

# What reads ask for. usbfs and FunctionFS both allocate it in one piece.
READ_BYTES = 65_536
TRANSFER_BYTES = READ_BYTES - 1

# Packets are 64, 512 or 1,024 bytes, by speed.
PACKET_BYTES = 64

NONCE_BYTES = 16
_MAGIC = bytes.fromhex("9d1f6be0c2574a38b1f4e72a03d68c5f")
_KINDS: dict[bytes, Literal["open", "answer", "end"]] = {b"O": "open", b"A": "answer", b"E": "end"}
MARK_BYTES = len(_MAGIC) + 1 + NONCE_BYTES


@dataclass(frozen=True, slots=True)
class Mark:
    """A session begins, has begun, or has ended."""

    kind: Literal["open", "answer", "end"]
    nonce: bytes

    def pack(self) -> bytes:
        return _MAGIC + self.kind[:1].upper().encode() + self.nonce


def unpack_mark(transfer: Buffer) -> Mark | None:
    """The mark that a transfer is, or None: then it is a piece of the stream."""
    if len(transfer) != MARK_BYTES or bytes(transfer[: len(_MAGIC)]) != _MAGIC:
        return None
    kind = _KINDS.get(bytes(transfer[len(_MAGIC) : len(_MAGIC) + 1]))
    return None if kind is None else Mark(kind, bytes(transfer[-NONCE_BYTES:]))


def into_transfers(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """Transfers that carry all parts one after another."""
    gathered = bytearray()
    for part in parts:
        rest = memoryview(part)
        while rest:
            piece = rest[: TRANSFER_BYTES - len(gathered)]
            gathered += piece
            rest = rest[len(piece) :]
            if len(gathered) == TRANSFER_BYTES:
                yield bytes(gathered)
                gathered.clear()
    if not gathered:
        return
    if len(gathered) % PACKET_BYTES == 0:
        yield bytes(gathered[:-1])
        yield bytes(gathered[-1:])
    else:
        yield bytes(gathered)
