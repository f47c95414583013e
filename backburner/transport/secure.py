"""Channels between paired machines: mutual TLS 1.3 with pinned keys, over any other channel.

Who may talk is decided twice, and before a byte of ours crosses:

1. In the handshake, by OpenSSL: the peers' own certificates are the only trust anchors. Python's ssl has no other
   way for a server: with CERT_NONE it does not ask for a certificate at all, and with the two other modes OpenSSL
   verifies it. So a stranger's handshake fails, and TLS proves that the peer has its key.
2. After it, by the fingerprint of the key that was really shown. OpenSSL looks for a chain to an anchor; we want this
   very key, in this role. If ever an anchor's key could sign another certificate that OpenSSL accepts, this refuses it.

No host names, no authorities, no dates that end. TLS 1.3 only: its handshake is signed as a whole, so that it can be
neither downgraded nor replayed. No tickets: each connection proves the keys anew, and who was forgotten cannot resume.
"""

import contextlib
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from threading import Lock

from backburner.errors import ConfigError, LinkClosed, LinkTimeout, NotPaired, TransportError
from backburner.transport.channel import Channel
from backburner.transport.frames import Buffer
from backburner.transport.identity import Identity, KeyStore, TrustedPeer, certificate_fingerprint
from backburner.transport.tcp import connect_unsecured, resolve

# What a caller may take to show its key. A handshake takes two milliseconds, and three round trips.
HANDSHAKE_S = 5.0

# A handshake of ours takes 1.5 KB each way.
HANDSHAKE_BYTES_MAX = 64 * 1024

# How much is encrypted before it is sent, and read before it is decrypted: the CPU and the wire take turns then.
CHUNK_BYTES = 256 * 1024

# Records carry at most 16 KiB; smaller parts share one.
SMALL_BYTES = 16 * 1024

# Of the two things that are spoken over TLS: what one side says in the one must never be heard as the other.
LINK_PROTOCOL = "backburner/1"
PAIR_PROTOCOL = "backburner-pair/1"

# In TLS 1.3 a client is done before the server has looked at its certificate. The worker says this when it has, and
# until then the host says nothing: it learns that it was refused, and why, instead of a reset.
ACCEPTED = b"\x01"

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl does not name. A person has vouched for the key, and the clock
# of a phone that was empty must not lock it out.
NO_CHECK_TIME = 0x200000

UNKNOWN_KEY_ALERTS = (
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_BAD_CERTIFICATE",
)


def connect(
    channel: Channel, store: KeyStore, peers: Sequence[TrustedPeer], protocol: str, deadline: float
) -> "TlsChannel":
    """The host's handshake. When it returns, both sides have accepted each other. Raises TransportError."""
    secured = _handshake(channel, store.identity(), peers, ssl.PROTOCOL_TLS_CLIENT, protocol, deadline)
    said = bytearray(1)
    try:
        if not secured.recv_into(memoryview(said), deadline) or said != ACCEPTED:
            raise NotPaired(f"{channel.peer} hung up after the handshake; {PAIR_ADVICE}")
    except BaseException:
        channel.close()
        raise
    return secured


def accept(
    channel: Channel, store: KeyStore, peers: Sequence[TrustedPeer], protocol: str, deadline: float
) -> "TlsChannel":
    """The worker's handshake. Raises TransportError for whoever is not among the peers, and closes the channel."""
    secured = _handshake(channel, store.identity(), peers, ssl.PROTOCOL_TLS_SERVER, protocol, deadline)
    try:
        secured.send([ACCEPTED], deadline)
    except BaseException:
        channel.close()
        raise
    return secured


PAIR_ADVICE = (
    "pair the two machines: `backburner worker --listen ... --pair` there, `backburner pair tcp://...` here"
)


def connector(host: str, port: int, where: str, store: KeyStore) -> Callable[[], "TlsChannel"]:
    """What reaches a worker beyond loopback, again and again."""

    def reach() -> TlsChannel:
        peers = store.peers("worker")
        if not peers:
            raise NotPaired(
                f"{where} is another machine, and no worker is paired with this one; {PAIR_ADVICE}"
            )
        channel = connect_unsecured(resolve(host)[0], port, where)
        return connect(channel, store, peers, LINK_PROTOCOL, time.monotonic() + HANDSHAKE_S)

    return reach


def doorkeeper(store: KeyStore) -> Callable[[Channel], "TlsChannel"]:
    """What a worker asks each caller to pass. It reads the peers anew each time: a forgotten one is out at once."""

    def check(channel: Channel) -> TlsChannel:
        return accept(channel, store, store.peers("host"), LINK_PROTOCOL, time.monotonic() + HANDSHAKE_S)

    return check


class TlsChannel:
    """A channel over another one, after its handshake. One thread may read while another sends.

    An OpenSSL connection is one state machine and must not be entered by two threads. It works in memory only here,
    under a lock, and never waits; the waiting for the wire is done outside of it. So a sender that is stuck does not
    keep the reader from reading, which may be what the other side waits for.
    """

    def __init__(
        self, channel: Channel, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ):
        self.peer = channel.peer
        self._channel = channel
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._lock = Lock()  # of the three above
        self._send_lock = Lock()  # records are sent in the order in which they were made
        self._raw = memoryview(bytearray(CHUNK_BYTES))  # only the one reader uses it

    def send(self, parts: Sequence[Buffer], deadline: float) -> int:
        total = sum(map(len, parts))
        if total <= SMALL_BYTES:
            parts = [b"".join(parts)]
        if not self._send_lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise LinkTimeout(f"{self.peer} did not move a byte in time")
        try:
            for part in parts:
                for start in range(0, len(part), CHUNK_BYTES):
                    self._send_chunk(memoryview(part)[start : start + CHUNK_BYTES], deadline)
        finally:
            self._send_lock.release()
        return total

    def _send_chunk(self, chunk: memoryview, deadline: float) -> None:
        try:
            with self._lock:
                while chunk:
                    chunk = chunk[self._tls.write(chunk) :]
                # With it goes what reading has made, an answer to a key update: it is due before our next bytes.
                sealed = self._outgoing.read()
        except ssl.SSLError as error:
            raise LinkClosed(f"{self.peer} is gone: {_reason(error)}") from None
        self._channel.send([sealed], deadline)

    def recv_into(self, space: memoryview, deadline: float) -> int:
        while True:
            count = self._opened(space)
            if count is not None:
                return count
            size = self._channel.recv_into(self._raw, deadline)
            with self._lock:
                if size:
                    self._incoming.write(self._raw[:size])
                else:
                    self._incoming.write_eof()

    def _opened(self, space: memoryview) -> int | None:
        """Moves what is decrypted into the space; None if nothing is there yet, 0 at the end."""
        count = 0
        try:
            with self._lock:
                while count < len(space):
                    got = self._tls.read(len(space) - count, space[count:])
                    if not got:
                        break
                    count += int(got)
        except ssl.SSLWantReadError:
            return count or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Whoever can cut the wire can end it anywhere: with or without TLS's goodbye, frames say if it was early.
            pass
        except ssl.SSLError as error:
            if count:
                return count  # the error stays: the next read meets it
            if error.reason in UNKNOWN_KEY_ALERTS:
                raise NotPaired(f"{self.peer} does not know this machine's key; {PAIR_ADVICE}") from None
            raise LinkClosed(f"the link to {self.peer} is damaged: {_reason(error)}") from None
        return count

    def close(self) -> None:
        # Without TLS's goodbye: it would have to wait for a sender in its middle, and `Bye` says it already.
        self._channel.close()


def _context(identity: Identity, peers: Collection[TrustedPeer], side: int, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= NO_CHECK_TIME
    try:
        context.load_cert_chain(identity.path)
        context.load_verify_locations(cadata="\n".join(peer.certificate for peer in peers))
    except OSError as error:  # ssl's own among them
        raise ConfigError(f"the keys in {identity.path.parent} cannot be loaded: {error}") from None
    context.set_alpn_protocols([protocol])
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _handshake(
    channel: Channel,
    identity: Identity,
    peers: Sequence[TrustedPeer],
    side: int,
    protocol: str,
    deadline: float,
) -> TlsChannel:
    """Both sides'. Raises TransportError, with the channel closed."""
    if not peers:
        channel.close()
        raise NotPaired(f"no peer of {channel.peer} is paired with this machine; {PAIR_ADVICE}")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = side == ssl.PROTOCOL_TLS_SERVER
    tls = _context(identity, peers, side, protocol).wrap_bio(incoming, outgoing, server_side=server)
    begun = not server  # whether the other side has heard of us
    try:
        try:
            left = HANDSHAKE_BYTES_MAX
            while not _step(tls):
                begun = _flush(channel, outgoing, deadline) or begun
                left -= _fill(channel, incoming, deadline)
                if left < 0:
                    raise NotPaired(f"{channel.peer} sent too much for a handshake")
        except ssl.SSLError as error:
            # The alert says why, but who has not even spoken TLS 1.3 gets no answer at all.
            if begun:
                with contextlib.suppress(TransportError):
                    _flush(channel, outgoing, min(deadline, time.monotonic() + 1))
            raise NotPaired(f"{channel.peer} was refused: {_reason(error)}; {PAIR_ADVICE}") from None
        shown = tls.getpeercert(binary_form=True)
        known = {peer.fingerprint for peer in peers}
        if shown is None or certificate_fingerprint(shown).hex() not in known:
            raise NotPaired(f"{channel.peer} has shown a key that is not paired; {PAIR_ADVICE}")
        if tls.version() != "TLSv1.3" or tls.selected_alpn_protocol() != protocol:
            raise NotPaired(f"{channel.peer} does not speak {protocol} over TLS 1.3")
        # The client's last message of the handshake.
        _flush(channel, outgoing, deadline)
    except BaseException:
        channel.close()
        raise
    return TlsChannel(channel, tls, incoming, outgoing)


def _step(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _flush(channel: Channel, outgoing: ssl.MemoryBIO, deadline: float) -> bool:
    data = outgoing.read()
    if data:
        channel.send([data], deadline)
    return bool(data)


def _fill(channel: Channel, incoming: ssl.MemoryBIO, deadline: float) -> int:
    space = bytearray(4096)
    count = channel.recv_into(memoryview(space), deadline)
    if not count:
        raise NotPaired(f"{channel.peer} hung up in the handshake; {PAIR_ADVICE}")
    return incoming.write(memoryview(space)[:count])


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).replace("_", " ").lower()
