"""This machine's key and the peers it is paired with, in a folder that only its owner can read."""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from backburner.disk import to_disk
from backburner.errors import ConfigError, ProtocolError

KEY_FILE = "key.pem"  # the private key, then its certificate: what ssl loads as one chain
PEERS_FILE = "peers.json"
FILE_BYTES_MAX = 2**20

# A phone whose clock is wrong must not lose its worker, and the words have vouched for the key, not for a date.
VALID_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
VALID_TO = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)

# The same in every certificate: a stranger who opens a connection sees it, and learns no name from it.
COMMON_NAME = "backburner"


# All that the parser is known to raise, by a certificate that a stranger has made up.
BAD_CERTIFICATE = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """This machine's key: where it lies, and what others know it by."""

    path: Path
    certificate: bytes  # DER
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class TrustedPeer:
    """A machine that a person has let in. A paired host is no worker, and the other way round."""

    name: str
    role: Literal["host", "worker"]
    fingerprint: str  # hex
    since: str  # YYYY-MM-DD
    certificate: str  # PEM: what ssl is given as its only trust anchors


def certificate_fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of the SubjectPublicKeyInfo. Raises ProtocolError for a certificate that we do not deal with.

    That is any but a self-signed one of version 3 on P-256 that is no authority: as a trust anchor, an authority
    could introduce keys that no person has compared words for.
    """
    try:
        cert = x509.load_der_x509_certificate(certificate)
        key = cert.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ProtocolError("the other side's key is not on the curve P-256")
        if cert.version != x509.Version.v3:
            raise ProtocolError("the other side's certificate is not of version 3")
        cert.verify_directly_issued_by(cert)
        with contextlib.suppress(x509.ExtensionNotFound):
            if cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                raise ProtocolError("the other side's certificate is an authority's")
    except BAD_CERTIFICATE as e:
        raise ProtocolError(f"the other side's certificate cannot be used: {e or type(e).__name__}") from None
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


class KeyStore:
    """The folder. What is in it is read at each call: who forgets a peer need not restart anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def identity(self) -> Identity:
        """This machine's key; made at the first call."""
        path = self.folder / KEY_FILE
        text = self._read(path)
        if text is None:
            self._make_folder()
            # A link fails where a file is already: of two processes that start at once, one key wins for both.
            with _temporary(self.folder, _new_key()) as made, contextlib.suppress(FileExistsError):
                os.link(made, path)
            text = self._read(path)
        try:
            certificate = x509.load_pem_x509_certificate(text or b"").public_bytes(Encoding.DER)
            return Identity(path, certificate, certificate_fingerprint(certificate))
        except (ValueError, ProtocolError) as e:
            raise ConfigError(
                f"{path} is damaged ({e}). Remove it: a new key is made, and this machine has to be paired again."
            ) from None

    def peers(self, role: str | None = None) -> list[TrustedPeer]:
        """Who is paired, the oldest first."""
        path = self.folder / PEERS_FILE
        text = self._read(path)
        if text is None:
            return []
        try:
            peers = [TrustedPeer(**entry) for entry in json.loads(text)["peers"]]
            for peer in peers:
                # The file says what each key is; what counts is the key.
                certificate = x509.load_pem_x509_certificate(peer.certificate.encode())
                if certificate_fingerprint(certificate.public_bytes(Encoding.DER)).hex() != peer.fingerprint:
                    raise ValueError(f"the fingerprint of {peer.name!r} is not its key's")
        except (ValueError, TypeError, KeyError, AttributeError, ProtocolError) as e:
            raise ConfigError(
                f"{path} is damaged ({e}). Remove it and pair this machine's peers again."
            ) from None
        return [peer for peer in peers if role in (None, peer.role)]

    def trust(self, name: str, role: Literal["host", "worker"], certificate: bytes) -> TrustedPeer:
        """Adds a peer, or renews one. A name that another key has gets a number."""
        fingerprint = certificate_fingerprint(certificate).hex()
        pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM).decode()
        with self._locked():
            peers = [p for p in self.peers() if (p.fingerprint, p.role) != (fingerprint, role)]
            taken = {p.name for p in peers if p.fingerprint != fingerprint}
            free, number = name, 2
            while free in taken:
                free, number = f"{name}-{number}", number + 1
            peer = TrustedPeer(free, role, fingerprint, datetime.date.today().isoformat(), pem)
            self._write_peers([*peers, peer])
        return peer

    def forget(self, name: str) -> list[TrustedPeer]:
        """Removes the peers of that name, or whose fingerprint it is; gives those removed."""
        with self._locked():
            peers = self.peers()
            gone = [p for p in peers if name in (p.name, p.fingerprint)]
            if gone:
                self._write_peers([p for p in peers if p not in gone])
        return gone

    def _write_peers(self, peers: list[TrustedPeer]) -> None:
        text = json.dumps({"version": 1, "peers": [asdict(p) for p in peers]}, indent=1)
        with _temporary(self.folder, text.encode()) as made:
            os.replace(made, self.folder / PEERS_FILE)
            to_disk(self.folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time: two pairings that end together are both kept."""
        self._make_folder()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_folder(self) -> None:
        try:
            # Parents are the user's config folders, and theirs to decide about.
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"cannot make the folder for keys {self.folder}: {e}") from None
        self._check_folder()

    def _check_folder(self) -> None:
        """Raises ConfigError unless it is ours alone. A folder that is not there is none's."""
        with contextlib.suppress(FileNotFoundError):
            _require_owner_only(os.lstat(self.folder), self.folder, stat.S_ISDIR, "a folder", "700")

    def _read(self, path: Path) -> bytes | None:
        """A file's content, or None if there is none; ConfigError if anyone else could have read or written it."""
        self._check_folder()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise ConfigError(f"cannot read {path}: {e}") from None
        with open(descriptor, "rb") as file:
            _require_owner_only(os.fstat(descriptor), path, stat.S_ISREG, "a plain file", "600")
            return file.read(FILE_BYTES_MAX)


def _require_owner_only(status: os.stat_result, path: Path, kind: object, what: str, mode: str) -> None:
    if not callable(kind) or not kind(status.st_mode):
        raise ConfigError(f"{path} is not {what}; move it away: keys are only kept in one.")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user; make it yours (chown), or move it away.")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{path} can be used by others (mode {stat.S_IMODE(status.st_mode):o}). Whoever reads a key can be this "
            f"machine: run `chmod {mode} {path}`, and pair anew if others may have read it."
        )


def _new_key() -> bytes:
    """A private key and its self-signed certificate, PEM.

    P-256, not Ed25519: on Apple's side a TLS identity is a SecKey, and those of Security.framework (the Secure
    Enclave's too) are RSA or NIST curves. Both TLS 1.3 stacks must have P-256 with SHA-256.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_TO)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # Names alone would make every anchor a candidate issuer of every peer: they are all called the same.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


@contextlib.contextmanager
def _temporary(folder: Path, content: bytes) -> Iterator[str]:
    """A file beside its place with all its content on the disk, for the caller to link or rename. Mode 0600."""
    try:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=".new-")
    except OSError as e:
        raise ConfigError(f"cannot write in {folder}: {e}") from None
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
