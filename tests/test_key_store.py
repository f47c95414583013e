"""The files that hold a machine's key and those it trusts: the owner's alone, and damage is said."""

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from backburner.errors import ConfigError, ProtocolError
from backburner.transport.identity import KeyStore, certificate_fingerprint
from backburner.worker import server as worker_server
from tests import trusted
from tests.trusted import LONG_S, certificate

keys = trusted.keys


def test_keys_and_peers_are_the_owners_alone(tmp_path) -> None:
    old = os.umask(0)
    try:
        store = KeyStore(tmp_path / "new" / "pairing")
        store.identity()
        store.trust("attic", "worker", KeyStore(tmp_path / "b").identity().certificate)
    finally:
        os.umask(old)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    files = sorted(store.folder.iterdir())
    assert [f.name for f in files] == ["key.pem", "peers.json"]
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    assert store.identity() == KeyStore(store.folder).identity()


@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("", 0o750, "chmod 700"),
        ("", 0o701, "chmod 700"),
        ("key.pem", 0o640, "chmod 600"),
        ("key.pem", 0o602, "chmod 600"),
        ("peers.json", 0o644, "chmod 600"),
    ],
)
def test_files_that_others_can_use_are_refused_with_the_way_out(tmp_path, name, mode, says) -> None:
    store = KeyStore(tmp_path / "keys")
    store.trust("me", "worker", store.identity().certificate)
    (store.folder / name).chmod(mode)
    with pytest.raises(ConfigError, match=f"can be used by others.*{says}"):
        store.peers() and store.identity()


def test_a_link_to_a_key_somewhere_else_is_refused(tmp_path) -> None:
    store, other = KeyStore(tmp_path / "a"), KeyStore(tmp_path / "b")
    other.identity()
    store.folder.mkdir(mode=0o700)
    (store.folder / "key.pem").symlink_to(other.folder / "key.pem")
    with pytest.raises(ConfigError, match="cannot read"):
        store.identity()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"peers": [{}]}', b'{"peers": [1]}', b"\xff", b'{"peers": null}']
)
def test_damaged_files_are_an_error_that_says_so(tmp_path, content: bytes) -> None:
    store = KeyStore(tmp_path / "a")
    store.trust("me", "worker", store.identity().certificate)
    (store.folder / "peers.json").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        store.peers()
    (store.folder / "key.pem").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        store.identity()


def test_a_fingerprint_that_is_not_its_keys_is_damage(tmp_path) -> None:
    store = KeyStore(tmp_path / "a")
    store.trust("me", "worker", store.identity().certificate)
    path = store.folder / "peers.json"
    peers = json.loads(path.read_text())
    peers["peers"][0]["fingerprint"] = "00" * 32
    path.write_text(json.dumps(peers))
    with pytest.raises(ConfigError, match="damaged"):
        store.peers()


def resigned(store: KeyStore, old: bytes, new: bytes) -> bytes:
    """The store's certificate with other bytes in it, signed with its key once more."""
    key = load_pem_private_key((store.folder / "key.pem").read_bytes(), None)
    cert = x509.load_der_x509_certificate(store.identity().certificate)
    body = cert.tbs_certificate_bytes
    assert old in body
    body = body.replace(old, new)
    signature = key.sign(body, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    return der(0x30, body + algorithm + der(0x03, b"\0" + signature))


def der(tag: int, content: bytes) -> bytes:
    length = len(content)
    short = bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2, "big")
    return bytes([tag]) + short + content


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("2a8648ce3d030107", "2a8648ce3d03017f", "Curve 1.2.840.10045.3.1.127 is not supported"),
        ("2a8648ce3d0201", "2a8648ce3d027f", "Unknown key type"),
        ("0603551d23", "0603551d0e", "Duplicate 2.5.29.14 extension"),
        ("0603551d23", "0603551d13", "Duplicate 2.5.29.19 extension"),
    ],
    ids=["curve", "key type", "extension twice", "constraints twice"],
)
def test_a_certificate_of_a_kind_that_nobody_knows_is_refused(keys, old: str, new: str, says: str) -> None:
    certificate = resigned(keys["stranger"], bytes.fromhex(old), bytes.fromhex(new))
    with pytest.raises(ProtocolError, match=f"certificate cannot be used: {re.escape(says)}"):
        certificate_fingerprint(certificate)


def test_threads_that_start_at_once_agree_on_one_key_and_lose_no_peer(tmp_path, keys) -> None:
    found = []

    def work(name: str) -> None:
        store = KeyStore(tmp_path / "a")
        found.append(store.identity().fingerprint)
        store.trust(name, "host", certificate(keys, name))

    threads = [threading.Thread(target=work, args=(name,)) for name in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert len(found) == len(keys)
    assert len(set(found)) == 1
    assert {p.name for p in KeyStore(tmp_path / "a").peers()} == set(keys)


def test_only_who_says_who_is_there_opens_doors_without_asking() -> None:
    """The two functions of tcp.py that know no loopback are used where keys are looked at, and nowhere else."""
    root = Path(worker_server.__file__).parent.parent
    users = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\b(connect|listen)_unsecured\(", path.read_text())
    }
    assert users == {"cli_pair.py", "cli_worker.py", "transport/tcp.py", "transport/secure.py"}
