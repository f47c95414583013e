"""Two machines that do not know each other exchange certificates, and the words that show a person nobody is between.

Three messages, each of a known length once its head is in; docs/protocol.md, Pairing, has the bytes:

    host   -> worker   Offer   commitment to the host's nonce, name, certificate
    worker -> host     Answer  the worker's nonce, name, certificate
    host   -> worker   Reveal  the host's nonce

The words are 66 bits of a hash over both whole messages and both nonces. Somebody in the middle has to hold two
conversations with keys of his own, and wants both to end in the same words. Towards the worker he is bound by his
commitment before he sees the worker's nonce, and towards the host he has to send his nonce before he sees the host's:
in each there is a number that he can neither choose nor foresee after his own last choice. So he cannot search for a
match; one attempt succeeds with a chance of 2^-66. Without the commitment he would try nonces of his own until
66 bits agree, offline and on many machines, while the persons still look for their glasses.

This module does no IO.
"""

import hashlib
import hmac
import secrets
import struct
from functools import lru_cache
from importlib import resources
from typing import Literal

from backburner.errors import ProtocolError
from backburner.transport.identity import certificate_fingerprint

Role = Literal["host", "worker"]

MAGIC = b"BKBNPAIR"
VERSION = 1
ROLES: dict[Role, int] = {"host": 1, "worker": 2}
HEAD = struct.Struct(
    "<8sBBHH32s"
)  # magic, version, role, bytes of name, bytes of certificate, commitment or nonce
NAME_BYTES_MAX = 64
CERTIFICATE_BYTES_MAX = 2048  # ours have 390
NONCE_BYTES = 32

WORD_BITS = 11
WORD_COUNT = 6

COMMITMENT_DOMAIN = b"backburner pairing 1 commitment\0"
WORDS_DOMAIN = b"backburner pairing 1 words\0"


def commitment(host_fingerprint: bytes, nonce: bytes) -> bytes:
    """What the host says of its nonce before it reveals it. The fingerprint ties it to the host's key."""
    return hashlib.sha256(COMMITMENT_DOMAIN + host_fingerprint + nonce).digest()


def key_words(offer: bytes, answer: bytes, host_nonce: bytes) -> tuple[str, ...]:
    """The words both sides show: 6 of a list of 2,048, the first 66 bits of the hash from its most significant bit."""
    digest = hashlib.sha256(
        # Hashes of fixed length, so that nothing can be moved from one part to the next.
        WORDS_DOMAIN + hashlib.sha256(offer).digest() + hashlib.sha256(answer).digest() + host_nonce
    ).digest()
    bits = int.from_bytes(digest, "big") >> (256 - WORD_COUNT * WORD_BITS)
    shifts = range((WORD_COUNT - 1) * WORD_BITS, -1, -WORD_BITS)
    return tuple(word_list()[bits >> shift & (1 << WORD_BITS) - 1] for shift in shifts)


@lru_cache(1)
def word_list() -> tuple[str, ...]:
    """The English list of BIP 39 (MIT licence): made for people, no two words share their first four letters."""
    words = resources.files("backburner.transport").joinpath("words.txt").read_text("ascii").split()
    assert len(words) == 1 << WORD_BITS
    return tuple(words)


class Pairing:
    """One side of the exchange: bytes in, bytes out. After `done`, `words` and what the other side is can be read.

    Whatever comes wrong raises ProtocolError, and the exchange is over; the worker says nothing before a whole
    Offer is in.
    """

    def __init__(self, role: Role, name: str, certificate: bytes, nonce: bytes | None = None) -> None:
        """certificate: this machine's, DER. nonce: only for tests that need the same bytes again."""
        self._role = role
        self._certificate = certificate
        self._nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        self._name = short_name(name)
        self._received = bytearray()
        self._ours = b""
        self._theirs: bytes | None = None
        self.answered = False  # whether the other side has learned this side's nonce
        self.peer_name = ""
        self.peer_certificate = b""
        self.words: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        return bool(self.words)

    @property
    def wanted(self) -> int:
        """How many bytes may be read now. What follows the last of them is TLS, and not this module's."""
        if self.done:
            return 0
        if self._theirs is not None:
            return NONCE_BYTES - len(self._received)
        size = HEAD.size
        if len(self._received) >= size:
            size += sum(HEAD.unpack_from(self._received)[3:5])
        return size - len(self._received)

    def start(self) -> bytes:
        """What to send first: the host's Offer, nothing from a worker."""
        if self._role == "worker":
            return b""
        self._ours = self._head(commitment(certificate_fingerprint(self._certificate), self._nonce))
        return self._ours

    def receive(self, data: bytes) -> bytes:
        """Takes bytes of the other side and gives those to send. Nothing may follow the last message."""
        if self.done:
            raise ProtocolError("bytes after the end of a pairing")
        self._received += data
        if self._theirs is None and not self._take_head():
            return b""
        if self._role == "host":
            self.answered = True
            self._finish(self._ours, self._theirs or b"", self._nonce)
            return self._nonce
        reply = b""
        if not self.answered:
            self._ours = reply = self._head(self._nonce)
            self.answered = True
        if len(self._received) >= NONCE_BYTES:
            self._take_reveal()
        return reply

    def _take_head(self) -> bool:
        """Whether the other side's Offer or Answer is in."""
        got = self._received
        # Each byte is checked as it comes: a caller that speaks something else is not listened to for long.
        if bytes(got[:8]) != MAGIC[: len(got)]:
            raise ProtocolError("the other side does not speak Backburner's pairing")
        if len(got) < HEAD.size:
            return False
        _, version, role, name_len, certificate_len, _ = HEAD.unpack_from(got)
        if version != VERSION:
            raise ProtocolError(
                f"the other side pairs by version {version}, this one by {VERSION}; install the same version on both"
            )
        if role != ROLES["worker" if self._role == "host" else "host"]:
            raise ProtocolError(
                f"two {self._role}s cannot be paired: one side has to be a host, one a worker"
            )
        if name_len > NAME_BYTES_MAX or not 0 < certificate_len <= CERTIFICATE_BYTES_MAX:
            raise ProtocolError(f"a name of {name_len} and a certificate of {certificate_len} bytes")
        end = HEAD.size + name_len + certificate_len
        if len(got) < end:
            return False
        self._theirs = bytes(got[:end])
        self.peer_name = clean_name(self._theirs[HEAD.size : HEAD.size + name_len].decode("utf-8", "replace"))
        self.peer_certificate = self._theirs[HEAD.size + name_len :]
        del got[:end]
        # Raises for what is no certificate of the kind that a later handshake takes.
        certificate_fingerprint(self.peer_certificate)
        if got and self._role == "host":
            raise ProtocolError("bytes after an Answer")
        if got and not self.answered:
            raise ProtocolError("a Reveal before the Answer")
        return True

    def _take_reveal(self) -> None:
        if len(self._received) > NONCE_BYTES:
            raise ProtocolError("bytes after a Reveal")
        nonce = bytes(self._received)
        assert self._theirs is not None
        said: bytes = HEAD.unpack_from(self._theirs)[-1]
        if not hmac.compare_digest(said, commitment(certificate_fingerprint(self.peer_certificate), nonce)):
            raise ProtocolError("the nonce is not the one that was committed to")
        self._finish(self._theirs, self._ours, nonce)

    def _finish(self, offer: bytes, answer: bytes, host_nonce: bytes) -> None:
        self.words = key_words(offer, answer, host_nonce)

    def _head(self, number: bytes) -> bytes:
        name = self._name.encode()
        head = HEAD.pack(MAGIC, VERSION, ROLES[self._role], len(name), len(self._certificate), number)
        return head + name + self._certificate


def clean_name(text: str) -> str:
    """A stranger's name as it may be shown: nothing that moves a terminal's cursor or hides, one line, not empty."""
    return " ".join("".join(ch if ch.isprintable() else " " for ch in text).split()) or "unnamed"


def short_name(name: str) -> str:
    """A name as it crosses: shown safely, and not longer than the wire allows."""
    return clean_name(name).encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")
