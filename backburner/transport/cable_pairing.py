"""Keys exchanged once over a cable or on one machine, without words: there is nobody in between."""

from collections.abc import Callable

from backburner.errors import BadRequest, ConfigError, ProtocolError, RemoteError
from backburner.transport.identity import KeyStore, TrustedPeer, certificate_fingerprint
from backburner.transport.key_words import CERTIFICATE_BYTES_MAX, Role, short_name
from backburner.transport.link import Link
from backburner.transport.messages import Paired, PairKeys

# Machines need no time for it; a first key is made in milliseconds.
EXCHANGE_S = 5.0


def introduce_host(link: Link, store: KeyStore, name: str) -> TrustedPeer:
    """The host's side, over a link that has carried nothing yet. Ends the link.

    Raises BackburnerError; then the worker is not trusted here.
    """
    try:
        request = PairKeys(short_name(name), store.identity().certificate)
        paired = link.exchange(request, EXCHANGE_S)
        return _trust(store, "worker", paired)
    finally:
        link.close()


def introducer(
    store: KeyStore, name: str, told: Callable[[TrustedPeer], None]
) -> Callable[[PairKeys], Paired]:
    """The worker's side, for WorkerServer. `told` hears of each host that is trusted from now on."""

    def introduce(request: PairKeys) -> Paired:
        try:
            _check(request)  # before this machine makes a key of its own
            own = store.identity()
            told(_trust(store, "host", request))
        except ProtocolError as error:
            raise BadRequest(f"the host is not paired: {error}") from None
        except ConfigError as error:
            raise RemoteError(f"this worker cannot keep keys: {error}") from None
        return Paired(short_name(name), own.certificate)

    return introduce


def _check(peer: PairKeys | Paired) -> None:
    """Raises ProtocolError for a key that no later handshake would take."""
    if len(peer.certificate) > CERTIFICATE_BYTES_MAX:
        raise ProtocolError(
            f"the other side's certificate has {len(peer.certificate)} bytes, more than {CERTIFICATE_BYTES_MAX}"
        )
    certificate_fingerprint(peer.certificate)


def _trust(store: KeyStore, role: Role, peer: PairKeys | Paired) -> TrustedPeer:
    _check(peer)
    return store.trust(short_name(peer.name), role, peer.certificate)
