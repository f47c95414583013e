"""Keys exchanged over a cable or on one machine: once, without words, and only where the worker was told to."""

import datetime
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from backburner.attention.numpy_engine import NumpyEngine
from backburner.devices import probe
from backburner.errors import BadRequest, LinkClosed, NotPaired, ProtocolError, RemoteError, WorkerBusy
from backburner.transport import messages as m
from backburner.transport import secure
from backburner.transport.bulk import BulkChannel
from backburner.transport.cable_pairing import introduce_host, introducer
from backburner.transport.channel import Door
from backburner.transport.identity import KeyStore, TrustedPeer
from backburner.transport.link import Link
from backburner.transport.memory import memory_pair
from backburner.transport.peer import Peer
from backburner.transport.tcp import connect, listen
from backburner.worker.server import WorkerServer
from tests.host import port_of, running
from tests.processes import Process, run, until
from tests.test_bulk import Cable
from tests.test_pairing_commands import lan_address
from tests.trusted import reach, working
from tests.usbmux_daemon import usbmux_daemon

LONG_S = 20.0


@pytest.fixture
def stores(tmp_path: Path) -> tuple[KeyStore, KeyStore]:
    """A host's and a worker's, without anything in them."""
    return KeyStore(tmp_path / "host"), KeyStore(tmp_path / "worker")


@contextmanager
def introducing(
    store: KeyStore, door: Door | None = None
) -> Iterator[tuple[WorkerServer, list[TrustedPeer]]]:
    """A worker that takes keys, and whom it has told of."""
    told: list[TrustedPeer] = []
    server = WorkerServer(
        door or listen(),
        NumpyEngine(),
        2**28,
        "attic",
        ("numpy",),
        introduce=introducer(store, "attic", told.append),
    )
    with running(server):
        yield server, told


def plain(server: WorkerServer) -> Link:
    return Link(connect("127.0.0.1", port_of(server)), LONG_S)


def certificate(**what: object) -> bytes:
    """Like ours, but for what is asked for."""
    key = ec.generate_private_key(what.get("curve", ec.SECP256R1()))  # type: ignore[arg-type]
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "backburner")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .add_extension(x509.BasicConstraints(ca=bool(what.get("ca")), path_length=None), critical=True)
    )
    if what.get("padding"):
        comment = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(2_000))
        builder = builder.add_extension(comment, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


MALFORMED = {
    "empty": (b"", "cannot be used"),
    "garbage": (b"\x30\x82 not a certificate", "cannot be used"),
    "another curve": (certificate(curve=ec.SECP384R1()), "P-256"),
    "an authority": (certificate(ca=True), "authority"),
    "too long": (certificate(padding=True), "more than 2048"),
    "cut off": (certificate()[:-1], "cannot be used"),
}


def test_keys_that_crossed_once_are_good_for_tls_in_both_directions(stores, tmp_path) -> None:
    here, there = stores
    with introducing(there) as (server, told):
        peer = introduce_host(plain(server), here, "studio")
    assert (peer.name, peer.role, peer.fingerprint) == ("attic", "worker", there.identity().fingerprint.hex())
    assert [(p.name, p.role, p.fingerprint) for p in there.peers()] == [
        ("studio", "host", here.identity().fingerprint.hex())
    ]
    assert told == there.peers()
    assert here.peers() == [peer]
    stranger, impostor = KeyStore(tmp_path / "stranger"), KeyStore(tmp_path / "impostor")
    stranger.trust("attic", "worker", there.identity().certificate)
    impostor.trust("studio", "host", here.identity().certificate)
    with working(there) as server:
        assert probe(lambda: reach(server, here)).name == "test"
        with pytest.raises(NotPaired, match="does not know this machine's key"):
            reach(server, stranger)
    with working(impostor) as server, pytest.raises(NotPaired, match=r"not paired|refused"):
        reach(server, here)


def test_a_second_time_changes_nothing_but_the_date_and_names_are_shown_safely(stores) -> None:
    here, there = stores
    with introducing(there) as (server, _):
        for _ in range(2):
            until(lambda: server._serving is None)
            introduce_host(plain(server), here, "stu\x1b[2Jdio " + "ö" * 100)
    (peer,) = there.peers()
    assert peer.name.isprintable()
    assert len(peer.name.encode()) <= 64
    assert len(here.peers()) == 1


def test_all_that_is_kept_is_the_owners_alone(stores) -> None:
    here, there = stores
    with introducing(there) as (server, _):
        introduce_host(plain(server), here, "studio")
    for store in stores:
        assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()}
        assert files == {"key.pem": 0o600, "peers.json": 0o600}


def test_the_workers_key_is_made_when_the_first_host_hands_over_its_own(stores) -> None:
    here, there = stores
    with introducing(there) as (server, _):
        probe(lambda: plain(server))
        until(lambda: server._serving is None)
        assert not there.folder.exists()
        introduce_host(plain(server), here, "studio")
        assert (there.folder / "key.pem").exists()


@pytest.mark.parametrize(("sent", "says"), MALFORMED.values(), ids=MALFORMED)
def test_a_worker_refuses_a_malformed_key_and_makes_nothing(stores, sent, says, caplog) -> None:
    _, there = stores
    with introducing(there) as (server, told):
        link = plain(server)
        with pytest.raises(BadRequest, match=says):
            link.exchange(m.PairKeys("studio", sent))
        link.close()
        until(lambda: "refused the host at" in caplog.text)
    assert says in caplog.text
    assert told == []
    assert not there.folder.exists()


@pytest.mark.parametrize(("sent", "says"), MALFORMED.values(), ids=MALFORMED)
def test_a_host_refuses_a_malformed_key_and_keeps_nothing(stores, sent, says) -> None:
    here, _ = stores
    ours, theirs = memory_pair()

    def answer() -> None:
        peer = Peer(theirs, LONG_S)
        tag, request = peer.receive()
        assert isinstance(request, m.PairKeys)
        peer.reply(tag, m.Paired("attic", sent))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    link = Link(ours, LONG_S)
    with pytest.raises(ProtocolError, match=says):
        introduce_host(link, here, "studio")
    thread.join(LONG_S)
    assert not link.alive
    assert here.peers() == []


def test_a_paired_host_lets_nobody_else_in(stores) -> None:
    """Not even at a worker that was given both: a doorkeeper means a network."""
    here, there = stores
    here.trust("attic", "worker", there.identity().certificate)
    there.trust("studio", "host", here.identity().certificate)
    server = WorkerServer(
        listen(),
        NumpyEngine(),
        2**28,
        "attic",
        ("numpy",),
        doorkeeper=secure.doorkeeper(there),
        introduce=introducer(there, "attic", lambda peer: None),
    )
    with running(server), pytest.raises(BadRequest, match="takes no keys here"):
        reach(server, here).exchange(m.PairKeys("friend", certificate()))
    assert [peer.name for peer in there.peers()] == ["studio"]


def test_keys_come_first_or_not_at_all(stores) -> None:
    here, there = stores
    request = m.PairKeys("studio", here.identity().certificate)
    with introducing(there) as (server, told):
        link = plain(server)
        link.exchange(
            m.Hello(
                1, "test", "studio", bytes(32), m.PageGeometry(1, 1, 16, 16, "float32", 0.25), (0,), "numpy"
            )
        )
        with pytest.raises(BadRequest, match="PairKeys is not expected here"):
            link.exchange(request)
        with pytest.raises(WorkerBusy):  # while one is served, nobody is let in beside it
            introduce_host(plain(server), here, "studio")
        link.close()
        until(lambda: server._serving is None)
        link = plain(server)
        link.exchange(request)
        with pytest.raises(LinkClosed):  # and whoever came for that gets nothing else
            link.exchange(m.Stats())
    assert [peer.name for peer in told] == ["studio"]


def test_a_worker_that_cannot_keep_keys_says_so(stores) -> None:
    here, there = stores
    there.folder.mkdir(mode=0o755)
    there.folder.chmod(0o755)
    with introducing(there) as (server, told), pytest.raises(RemoteError, match="chmod 700"):
        introduce_host(plain(server), here, "studio")
    assert told == []
    assert here.peers() == []


def test_over_bulk_endpoints(stores) -> None:
    here, there = stores
    cable = Cable()
    with introducing(there, cable.door) as (_, told):
        introduce_host(Link(BulkChannel(cable.wire, "gadget", LONG_S)), here, "studio")
    assert [peer.name for peer in here.peers()] == ["attic"]
    assert [peer.name for peer in told] == ["studio"]
    cable.pull()


# The commands


def at(folder: Path) -> dict[str, str]:
    return {"BACKBURNER_CONFIG_DIR": str(folder)}


def test_pair_on_one_machine_and_be_let_in_on_the_network(tmp_path) -> None:
    here, there = at(tmp_path / "h"), at(tmp_path / "w")
    first = Process(["worker", "--listen", "127.0.0.1:0", "--pair-cable", "--name", "attic"], **there)
    try:
        port = first.expect(r"listening on 127\.0\.0\.1:(\d+)\n")[1]
        assert not (tmp_path / "w").exists(), "the flag alone makes no key"
        done = run("pair", f"tcp://127.0.0.1:{port}", "--name", "studio", **here)
        assert done.returncode == 0, done.stderr
        its = first.expect(
            "paired with the host studio, key ([0-9a-f]{16})\nthis machine's key is ([0-9a-f]{16})"
        )
        assert f"paired with the worker attic, key {its[2]}\nthis machine's key is {its[1]}\n" in done.stderr
    finally:
        first.stop()
    address = lan_address()
    second = Process(["worker", "--listen", f"{address}:0"], **there)
    try:
        port = second.expect(r"listening on [\d.]+:(\d+)\n")[1]
        link = Link(secure.connector(address, int(port), "attic", KeyStore(tmp_path / "h" / "pairing"))())
        with pytest.raises(BadRequest, match="takes no keys here"):
            introduce_host(link, KeyStore(tmp_path / "h" / "pairing"), "studio")
    finally:
        second.stop()


def test_over_usbmux(tmp_path) -> None:
    with usbmux_daemon() as daemon, introducing(KeyStore(tmp_path / "w")) as (server, told):
        daemon.ports = {50_060: port_of(server)}
        done = run("pair", "usb", USBMUXD_SOCKET_ADDRESS=f"UNIX:{daemon.address}", **at(tmp_path / "h"))
        assert done.returncode == 0, done.stderr
    assert [peer.name for peer in told] == [socket.gethostname()]
    assert [peer.name for peer in KeyStore(tmp_path / "h" / "pairing").peers("worker")] == ["attic"]


def test_without_the_flag_a_worker_takes_no_keys_and_makes_none(tmp_path) -> None:
    there = at(tmp_path / "w")
    process = Process(["worker", "--listen", "127.0.0.1:0"], **there)
    try:
        port = process.expect(r"listening on 127\.0\.0\.1:(\d+)\n")[1]
        done = run("pair", f"tcp://127.0.0.1:{port}", **at(tmp_path / "h"))
        assert done.returncode == 2
        assert "--pair-cable" in done.stderr
        assert "Traceback" not in done.stderr
        process.expect("refused the host")
    finally:
        process.stop()
    assert not (tmp_path / "w").exists()
    assert KeyStore(tmp_path / "h" / "pairing").peers() == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("worker", "--listen", "0.0.0.0:0", "--pair-cable"), "--pair-cable is for 127.0.0.1"),
        (("worker", "--listen", "127.0.0.1:0", "--pair"), "use --pair-cable there"),
        (("pair", "loopback"), "is not tcp://HOST:PORT, usb"),
        (("pair", "usb?rtt=2ms"), "is not tcp://HOST:PORT, usb"),
        (("pair", "usb", "--list"), "takes one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_meant_is_refused(command, says, tmp_path) -> None:
    done = run(*command, **at(tmp_path / "c"))
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "c").exists()
