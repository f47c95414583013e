"""Machines on a network: only keys that a person has let in are talked to."""

import contextlib
import socket
import ssl
import threading
import time

import numpy as np
import pytest

from backburner.attention.engine import Geometry
from backburner.errors import (
    LinkClosed,
    LinkTimeout,
    NotPaired,
    ProtocolError,
    TransportError,
)
from backburner.transport import identity, secure
from backburner.transport import messages as m
from backburner.transport.identity import KeyStore, certificate_fingerprint
from backburner.transport.memory import memory_pair
from backburner.transport.tcp import connect_unsecured
from backburner.worker import server as worker_server
from backburner.worker.server import WorkerServer
from tests import trusted
from tests.host import port_of, until
from tests.transport_helpers import same
from tests.trusted import LONG_S, answered, certificate, hello_bytes, paired, reach, soon, working

keys = trusted.keys


@pytest.fixture
def nothing_parsed(monkeypatch):
    """Fails the test if the worker looks at any message."""
    seen = []
    monkeypatch.setattr(worker_server, "Peer", lambda *a: seen.append(a))
    yield
    assert not seen


def test_a_paired_host_is_served(keys) -> None:
    with working(keys["worker"]) as server:
        from backburner.engine.worker_link import greet  # imports MLX, which nothing else here needs

        link = reach(server, keys["host"])
        greet(link, Geometry(4, 2, 64, 32, "float32", 0.125), (3, 7), b"model", "numpy")
        payload = np.random.default_rng(1).integers(0, 256, 3_000_001, np.uint8)
        for _ in range(3):
            assert same(link.exchange(m.Ping(True, payload)), m.Pong(payload))
        assert link.measure().bytes_per_s > 0
        link.close()


def test_a_client_without_tls_gets_not_one_byte(keys, nothing_parsed) -> None:
    with working(keys["worker"]) as server:
        for noise in (
            hello_bytes(),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 4096,
            b"\x16\x03\x01\x02\x00" + b"\0" * 600,
        ):
            assert answered(server, noise) == b""


def raw_handshake(server: WorkerServer, context: ssl.SSLContext) -> bytes:
    """What a TLS client is told after its handshake, with a Hello of ours sent at once; raises what ssl raises."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port_of(server)), timeout=LONG_S) as sock,
        context.wrap_socket(sock) as tls,
    ):
        tls.sendall(hello_bytes())
        got = b""
        while piece := tls.recv(4096):
            got += piece
        return got


def test_a_client_without_a_certificate_is_refused(keys, nothing_parsed) -> None:
    with working(keys["worker"]) as server, pytest.raises((ssl.SSLError, ConnectionError)):
        raw_handshake(server, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


@pytest.mark.parametrize("name", ["stranger", "worker"])
def test_a_client_with_another_key_is_refused(keys, nothing_parsed, name: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(keys[name].identity().path)
    with working(keys["worker"]) as server, pytest.raises((ssl.SSLError, ConnectionError)):
        raw_handshake(server, context)


def test_tls_1_2_is_refused_without_an_answer(keys, nothing_parsed) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(keys["host"].identity().path)
    with working(keys["worker"]) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            raw_handshake(server, context)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        assert answered(server, outgoing.read()) == b""


def test_a_host_refuses_a_worker_that_only_speaks_tls_1_2(keys) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(keys["worker"].identity().path)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def old() -> None:
            sock, _ = listening.accept()
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
                tls.recv(10)

        threading.Thread(target=old, daemon=True).start()
        with pytest.raises(NotPaired):
            secure.connector("127.0.0.1", listening.getsockname()[1], "there", keys["host"])()


def test_the_right_key_without_our_protocols_name_is_refused(keys, nothing_parsed) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(keys["host"].identity().path)
    for names in ([], [secure.PAIR_PROTOCOL]):
        if names:
            context.set_alpn_protocols(names)
        with working(keys["worker"]) as server, contextlib.suppress(ssl.SSLError, ConnectionError):
            assert raw_handshake(server, context) == b""


def test_a_host_that_is_refused_is_told_to_pair(keys, nothing_parsed) -> None:
    store = keys["stranger"]
    store.trust("the worker", "worker", certificate(keys, "worker"))
    with (
        working(keys["worker"]) as server,
        pytest.raises(NotPaired, match=r"does not know this machine's key; pair"),
    ):
        reach(server, store)


def test_a_worker_with_another_key_gets_nothing_from_a_host(keys) -> None:
    keys["other"].trust("the host", "host", certificate(keys, "host"))
    with working(keys["other"]) as server:
        with pytest.raises(NotPaired, match="was refused: certificate verify failed"):
            reach(server, keys["host"])
        assert server._serving is None


def test_a_paired_host_is_no_worker_and_the_other_way_round(keys) -> None:
    with pytest.raises(NotPaired, match="no worker is paired"):
        secure.connector("127.0.0.1", 1, "there", keys["worker"])()
    with working(keys["host"]) as server, pytest.raises(NotPaired):
        reach(server, keys["host"])


def test_of_many_paired_machines_each_is_known(tmp_path) -> None:
    worker = KeyStore(tmp_path / "w")
    hosts = [KeyStore(tmp_path / str(i)) for i in range(4)]
    for host in hosts:
        paired(host, worker)
    assert [p.name for p in worker.peers()] == ["the host", "the host-2", "the host-3", "the host-4"]
    with working(worker) as server:
        for host in hosts:
            reach(server, host).close()
            until(lambda: server._serving is None, LONG_S)
        worker.forget("the host-2")
        with pytest.raises(NotPaired, match="does not know"):
            reach(server, hosts[1])
        reach(server, hosts[2]).close()


def test_an_anchor_that_signs_for_another_key_does_not_let_it_in(keys, tmp_path) -> None:
    """What the second look is for: here OpenSSL accepts a chain that ends at a trusted certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def made(key, issuer_key, subject: str, issuer: str, ca: bool) -> x509.Certificate:
        name = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
        return (
            x509.CertificateBuilder()
            .subject_name(name[0])
            .issuer_name(name[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(identity.VALID_FROM)
            .not_valid_after(identity.VALID_TO)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(issuer_key, hashes.SHA256())
        )

    authority_key, child_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = made(authority_key, authority_key, "a", "a", True)
    child = made(child_key, authority_key, "c", "a", False)
    pem = serialization.Encoding.PEM
    with pytest.raises(ProtocolError, match="authority's"):
        certificate_fingerprint(authority.public_bytes(serialization.Encoding.DER))
    path = tmp_path / "child.pem"
    path.write_bytes(
        child_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + child.public_bytes(pem)
    )
    trusted = identity.TrustedPeer("a", "host", "00" * 32, "", authority.public_bytes(pem).decode())
    near, far = memory_pair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(path)
    context.set_alpn_protocols([secure.LINK_PROTOCOL])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)

    def client() -> None:
        with contextlib.suppress(TransportError):
            while not secure._step(tls):
                secure._flush(near, outgoing, soon())
                secure._fill(near, incoming, soon())
            secure._flush(near, outgoing, soon())

    threading.Thread(target=client, daemon=True).start()
    with pytest.raises((NotPaired, ProtocolError), match=r"not paired|cannot be used"):
        secure.accept(far, keys["worker"], [trusted], secure.LINK_PROTOCOL, soon())


def test_a_clock_that_is_wrong_locks_nobody_out(tmp_path, monkeypatch) -> None:
    host, worker = KeyStore(tmp_path / "h"), KeyStore(tmp_path / "w")
    monkeypatch.setattr(identity, "VALID_TO", identity.VALID_FROM.replace(year=2001))
    paired(host, worker)
    with working(worker) as server:
        reach(server, host).close()


class Recorder:
    """A channel that remembers what was sent through it."""

    def __init__(self, channel) -> None:
        self.peer, self._channel, self.sent = channel.peer, channel, b""

    def send(self, parts, deadline):
        self.sent += b"".join(parts)
        return self._channel.send(parts, deadline)

    def recv_into(self, space, deadline):
        return self._channel.recv_into(space, deadline)

    def close(self):
        self._channel.close()


def test_a_recorded_connection_cannot_be_played_again(keys, monkeypatch) -> None:
    with working(keys["worker"]) as server:
        recorder = Recorder(connect_unsecured("127.0.0.1", port_of(server), "there"))
        peers = keys["host"].peers("worker")
        channel = secure.connect(recorder, keys["host"], peers, secure.LINK_PROTOCOL, soon())
        channel.send([hello_bytes()], soon())
        assert channel.recv_into(memoryview(bytearray(4096)), soon())
        channel.close()
        until(lambda: server._serving is None, LONG_S)
        seen = []
        monkeypatch.setattr(worker_server, "Peer", lambda *a: seen.append(a))
        said = answered(server, recorder.sent)
        assert not seen
        # TLS's own first flight is all; the byte that accepts a host is not among it, let alone a Welcome.
        assert said[:1] in (b"", b"\x16")
        assert len(said) < 2000


def test_a_changed_byte_on_the_wire_ends_the_link(keys) -> None:
    near, far = memory_pair()
    stores = keys["host"], keys["worker"]
    got = {}

    def worker() -> None:
        got["worker"] = secure.accept(far, stores[1], stores[1].peers("host"), secure.LINK_PROTOCOL, soon())

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    host = secure.connect(near, stores[0], stores[0].peers("worker"), secure.LINK_PROTOCOL, soon())
    thread.join(LONG_S)
    near.send([b"\x17\x03\x03\x00\x20" + b"\0" * 32], soon())
    with pytest.raises(LinkClosed, match="damaged"):
        got["worker"].recv_into(memoryview(bytearray(100)), soon())
    host.close()


def test_both_directions_at_once_do_not_disturb_each_other(keys) -> None:
    near, far = memory_pair()
    stores = keys["host"], keys["worker"]
    ends = {}

    def worker() -> None:
        ends["far"] = secure.accept(far, stores[1], stores[1].peers("host"), secure.LINK_PROTOCOL, soon())

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    ends["near"] = secure.connect(near, stores[0], stores[0].peers("worker"), secure.LINK_PROTOCOL, soon())
    thread.join(LONG_S)
    data = np.random.default_rng(3).integers(0, 256, 12_000_003, np.uint8).tobytes()
    results = {}

    def send(name) -> None:
        view = memoryview(data)
        position, size = 0, 1
        while position < len(data):
            ends[name].send(
                [view[position : position + size], b"", view[position + size : position + 2 * size]], soon()
            )
            position += 2 * size
            size = size * 3 % 700_001 + 1

    def receive(name) -> None:
        space = bytearray(len(data))
        count = 0
        while count < len(data):
            count += ends[name].recv_into(memoryview(space)[count : count + 100_000], soon())
        results[name] = bytes(space)

    threads = [threading.Thread(target=f, args=(n,), daemon=True) for f in (send, receive) for n in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert results["near"] == data
    assert results["far"] == data
    with pytest.raises(LinkTimeout):
        ends["near"].recv_into(memoryview(bytearray(1)), time.monotonic() + 0.05)
    ends["far"].close()
    assert ends["near"].recv_into(memoryview(bytearray(1)), soon()) == 0


def test_strangers_who_wait_do_not_keep_a_paired_host_out(keys, monkeypatch) -> None:
    monkeypatch.setattr(secure, "HANDSHAKE_S", 4.0)
    with working(keys["worker"]) as server:
        silent = [
            socket.create_connection(("127.0.0.1", port_of(server)))
            for _ in range(worker_server.UNPROVEN_MAX + 8)
        ]
        link = reach(server, keys["host"])
        assert server._unproven  # they wait still
        link.close()
        until(lambda: not server._unproven, LONG_S)  # the deadline
        for sock in silent:
            sock.settimeout(LONG_S)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            sock.close()
