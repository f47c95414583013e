"""Machines on a network: only keys that a person has let in are talked to, and nobody can get between unseen."""

import contextlib
import json
import os
import re
import socket
import ssl
import stat
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.errors import (
    BackburnerError,
    ConfigError,
    LinkClosed,
    LinkTimeout,
    NotPaired,
    ProtocolError,
    TransportError,
)
from backburner.transport import codec, identity, key_words, pairing, secure
from backburner.transport import messages as m
from backburner.transport.identity import KeyStore, certificate_fingerprint
from backburner.transport.key_words import HEAD, Pairing
from backburner.transport.link import Link
from backburner.transport.memory import memory_pair
from backburner.transport.tcp import connect_unsecured, listen_unsecured
from backburner.worker import server as worker_server
from backburner.worker.server import WorkerServer
from tests.host import port_of, running, until
from tests.transport_helpers import same

LONG_S = 20.0


def soon() -> float:
    return time.monotonic() + LONG_S


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Folders with keys, made once."""
    folder = tmp_path_factory.mktemp("keys")
    stores = {name: KeyStore(folder / name) for name in ("host", "worker", "stranger", "other")}
    for store in stores.values():
        store.identity()
    paired(stores["host"], stores["worker"])
    return stores


def paired(host: KeyStore, worker: KeyStore) -> None:
    host.trust("the worker", "worker", worker.identity().certificate)
    worker.trust("the host", "host", host.identity().certificate)


@contextmanager
def working(store: KeyStore):
    """A worker that lets in whom the store trusts, on a free port."""
    listener, check = listen_unsecured("127.0.0.1", 0), secure.doorkeeper(store)
    with running(
        WorkerServer(listener, NumpyEngine(), 2**28, "test", ("numpy",), doorkeeper=check)
    ) as server:
        yield server


def reach(server: WorkerServer, store: KeyStore) -> Link:
    return Link(secure.connector("127.0.0.1", port_of(server), "test", store)(), LONG_S)


def answered(server: WorkerServer, data: bytes) -> bytes:
    """All that the worker says to these bytes."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=LONG_S) as sock:
        sock.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(4096):
                got += piece
        return got


# The exchange and its words


def exchange(host: Pairing, worker: Pairing) -> None:
    answer = worker.receive(host.start())
    worker.receive(host.receive(answer))


def certificate(keys, name: str) -> bytes:
    return keys[name].identity().certificate


def test_both_sides_show_the_same_six_words(keys) -> None:
    host = Pairing("host", "studio", certificate(keys, "host"))
    worker = Pairing("worker", "attic", certificate(keys, "worker"))
    assert worker.start() == b""
    exchange(host, worker)
    assert host.words == worker.words
    assert len(host.words) == 6
    assert (host.peer_name, worker.peer_name) == ("attic", "studio")
    assert host.peer_certificate == certificate(keys, "worker")
    assert worker.peer_certificate == certificate(keys, "host")
    assert host.wanted == worker.wanted == 0


def test_the_words_are_66_bits_of_a_hash_over_everything() -> None:
    words = key_words.word_list()
    assert len(set(words)) == 2048
    assert len({word[:4] for word in words}) == 2048
    assert (words[0], words[-1]) == ("abandon", "zoo")
    # Written out for whoever implements it anew: docs/protocol.md has the same example.
    assert key_words.key_words(b"offer", b"answer", bytes(32)) == EXAMPLE_WORDS
    many = {key_words.key_words(b"offer", b"answer", os.urandom(32)) for _ in range(300)}
    assert len({word for six in many for word in six}) > 800


EXAMPLE_WORDS = ("release", "photo", "obvious", "first", "slender", "vocal")


def test_a_byte_at_a_time_gives_the_same_and_nothing_is_said_before_the_whole_offer(keys) -> None:
    host = Pairing("host", "studio", certificate(keys, "host"))
    worker = Pairing("worker", "attic", certificate(keys, "worker"))
    offer = host.start()
    for byte in offer[:-1]:
        assert worker.wanted > 0
        assert worker.receive(bytes([byte])) == b""
        assert not worker.answered
    answer = worker.receive(offer[-1:])
    assert answer
    reveal = b"".join(host.receive(bytes([byte])) for byte in answer)
    for byte in reveal:
        worker.receive(bytes([byte]))
    assert host.words == worker.words != ()


def test_another_nonce_than_the_one_committed_to_is_refused(keys) -> None:
    host = Pairing("host", "studio", certificate(keys, "host"))
    worker = Pairing("worker", "attic", certificate(keys, "worker"))
    nonce = host.receive(worker.receive(host.start()))
    with pytest.raises(ProtocolError, match="committed"):
        worker.receive(bytes([nonce[0] ^ 1]) + nonce[1:])
    assert not worker.done


def test_a_commitment_of_another_host_cannot_be_passed_on_as_ones_own(keys) -> None:
    host = Pairing("host", "studio", certificate(keys, "host"))
    thief = Pairing("host", "studio", certificate(keys, "stranger"))
    worker = Pairing("worker", "attic", certificate(keys, "worker"))
    stolen = HEAD.unpack(host.start()[: HEAD.size])[-1]
    offer = thief.start()
    offer = offer[: HEAD.size - 32] + stolen + offer[HEAD.size :]
    nonce = host.receive(worker.receive(offer))
    with pytest.raises(ProtocolError, match="committed"):
        worker.receive(nonce)


def test_bad_offers_are_refused_without_an_answer(keys) -> None:
    offer = Pairing("host", "studio", certificate(keys, "host")).start()
    for change, says in [
        (lambda o: b"GET / HTTP/1.1\r\n", "does not speak"),
        (lambda o: o[:8] + b"\x02" + o[9:], "pairs by version 2"),
        (lambda o: o[:9] + b"\x02" + o[10:], "two workers"),
        (lambda o: o[:10] + b"\xff\xff" + o[12:], "a name of 65535"),
        (lambda o: o[:12] + b"\xff\xff" + o[14:], "certificate of 65535"),
        (lambda o: o[:12] + b"\0\0" + o[14:], "certificate of 0"),
        (lambda o: o[:-1] + bytes([o[-1] ^ 1]), "certificate cannot be used"),
    ]:
        worker = Pairing("worker", "attic", certificate(keys, "worker"))
        with pytest.raises(ProtocolError, match=says):
            worker.receive(change(offer))
        assert not worker.answered


@settings(deadline=None)
@given(st.binary(max_size=600))
def test_noise_never_gets_an_answer(keys, data: bytes) -> None:
    offer = Pairing("host", "studio", certificate(keys, "host")).start()
    for noise in (data, offer[:8] + data, offer[: HEAD.size] + data):
        worker = Pairing("worker", "attic", certificate(keys, "worker"))
        with contextlib.suppress(ProtocolError):
            assert worker.receive(noise) == b""
        assert not worker.answered


def test_a_strangers_name_cannot_move_the_cursor() -> None:
    assert key_words.clean_name("a\x1b[2J\n b\u202ec\0") == "a [2J b c"
    assert key_words.clean_name("\x1b\x07") == "unnamed"


# The middle


class Middle:
    """Somebody between: answers the host as a worker and calls the worker as a host, with keys of his own."""

    def __init__(self, keys, worker_port: int) -> None:
        self._certificate = certificate(keys, "stranger")
        self._worker_port = worker_port
        self.listener = listen_unsecured("127.0.0.1", 0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        to_host = self.listener.accept(LONG_S)
        to_worker = connect_unsecured("127.0.0.1", self._worker_port, "worker")
        fake_worker = Pairing("worker", "attic", self._certificate)
        fake_host = Pairing("host", "studio", self._certificate)
        pairing._exchange(to_host, fake_worker)
        pairing._exchange(to_worker, fake_host)
        self.words = fake_worker.words, fake_host.words
        self.kept = to_host, to_worker


def test_somebody_in_the_middle_gives_each_side_other_words_and_nothing_is_paired(keys, tmp_path) -> None:
    worker_store, host_store = KeyStore(tmp_path / "w"), KeyStore(tmp_path / "h")
    listener = listen_unsecured("127.0.0.1", 0)
    shown: dict[str, tuple[str, ...]] = {}
    both = threading.Barrier(2)

    def person(side: str):
        def compare(name, address, words):
            shown[side] = words
            both.wait(LONG_S)
            return shown["host"] == shown["worker"]

        return compare

    failed = []

    def worker() -> None:
        try:
            pairing.pair_as_worker(listener, worker_store, "attic", person("worker"), LONG_S)
        except TransportError as e:
            failed.append(e)

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    middle = Middle(keys, listener.port)
    channel = connect_unsecured("127.0.0.1", middle.listener.port, "worker")
    with pytest.raises(NotPaired, match="words are not the same"):
        pairing.pair_as_host(channel, host_store, "studio", person("host"))
    thread.join(LONG_S)
    middle.thread.join(LONG_S)
    assert "words are not the same" in str(failed[0])
    assert shown["host"] != shown["worker"]
    assert middle.words == (shown["host"], shown["worker"])  # both conversations were really his
    assert host_store.peers() == worker_store.peers() == []
    listener.close()


def pair_both(host_store, worker_store, host_says=True, worker_says=True, window_s=LONG_S):
    """Runs both sides; gives what each got, a peer or an error, and the words each showed."""
    listener = listen_unsecured("127.0.0.1", 0)
    results, words = {}, {}

    def asked(side, says):
        def compare(name, address, six):
            words[side] = six
            return says

        return compare

    def worker() -> None:
        try:
            results["worker"] = pairing.pair_as_worker(
                listener, worker_store, "attic", asked("worker", worker_says), window_s
            )
        except BackburnerError as e:
            results["worker"] = e

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    try:
        channel = connect_unsecured("127.0.0.1", listener.port, "worker")
        results["host"] = pairing.pair_as_host(channel, host_store, "studio", asked("host", host_says))
    except BackburnerError as e:
        results["host"] = e
    thread.join(LONG_S)
    listener.close()
    return results, words


def test_two_that_agree_are_paired_and_can_work(tmp_path) -> None:
    host, worker = KeyStore(tmp_path / "h"), KeyStore(tmp_path / "w")
    results, words = pair_both(host, worker)
    assert words["host"] == words["worker"]
    assert [(p.name, p.role) for p in host.peers()] == [("attic", "worker")]
    assert [(p.name, p.role) for p in worker.peers()] == [("studio", "host")]
    assert host.peers()[0].fingerprint == worker.identity().fingerprint.hex()
    assert results["host"] == host.peers()[0]
    with working(worker) as server:
        link = reach(server, host)
        assert link.alive
        link.close()


@pytest.mark.parametrize(("host_says", "worker_says"), [(False, True), (True, False), (False, False)])
def test_unless_both_agree_nobody_is_paired(tmp_path, host_says: bool, worker_says: bool) -> None:
    host, worker = KeyStore(tmp_path / "h"), KeyStore(tmp_path / "w")
    results, _ = pair_both(host, worker, host_says, worker_says)
    assert all(isinstance(result, NotPaired) for result in results.values())
    assert host.peers() == worker.peers() == []


def test_a_window_without_a_host_ends(tmp_path) -> None:
    listener = listen_unsecured("127.0.0.1", 0)
    with pytest.raises(NotPaired, match="no host asked"):
        pairing.pair_as_worker(listener, KeyStore(tmp_path / "w"), "attic", lambda *_: True, 0.1)
    listener.close()


def test_who_breaks_off_again_and_again_to_see_the_words_shuts_the_window(keys, tmp_path) -> None:
    listener = listen_unsecured("127.0.0.1", 0)
    stop = threading.Event()

    def guess() -> None:
        while not stop.is_set():
            with contextlib.suppress(TransportError):
                channel = connect_unsecured("127.0.0.1", listener.port, "worker", 1)
                offer = Pairing("host", "studio", certificate(keys, "stranger")).start()
                channel.send([offer], soon())
                channel.recv_into(memoryview(bytearray(4096)), time.monotonic() + 1)
                channel.close()

    thread = threading.Thread(target=guess, daemon=True)
    thread.start()
    with pytest.raises(NotPaired, match="get between"):
        pairing.pair_as_worker(listener, KeyStore(tmp_path / "w"), "attic", lambda *_: True, LONG_S)
    stop.set()
    listener.close()
    thread.join(LONG_S)


def test_callers_that_say_nothing_do_not_keep_a_host_from_being_paired(tmp_path, monkeypatch) -> None:
    host, worker = KeyStore(tmp_path / "h"), KeyStore(tmp_path / "w")
    listen = pairing.Listener.accept
    silent = []

    def with_silent_ones(listener, timeout_s):
        if not silent:
            silent.extend(socket.create_connection(("127.0.0.1", listener.port)) for _ in range(7))
        return listen(listener, timeout_s)

    monkeypatch.setattr(pairing.Listener, "accept", with_silent_ones)
    start = time.monotonic()
    pair_both(host, worker)
    assert len(host.peers()) == len(worker.peers()) == 1
    assert time.monotonic() - start < pairing.EXCHANGE_S
    for sock in silent:
        sock.close()


# Who may talk


def hello_bytes() -> bytes:
    geometry = m.PageGeometry(4, 2, 64, 32, "float32", 0.125)
    return b"".join(codec.encode(m.Hello(1, "backburner", "stranger", b"m", geometry, (3,), "numpy"), 1))


@pytest.fixture
def nothing_parsed(monkeypatch):
    """Fails the test if the worker looks at any message."""
    seen = []
    monkeypatch.setattr(worker_server, "Session", lambda *a: seen.append(a))
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
        monkeypatch.setattr(worker_server, "Session", lambda *a: seen.append(a))
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


# The files


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
