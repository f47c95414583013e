"""The worker over a real socket: greeting, refusals, attention, and what a lost host leaves."""

import socket
import threading
import time

import numpy as np
import pytest

from backburner.attention import folded
from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.attention.select import make_engine
from backburner.engine.worker_link import greet
from backburner.errors import (
    BadRequest,
    LinkClosed,
    LinkTimeout,
    Mismatch,
    OutOfBudget,
    UnknownPage,
    WorkerBusy,
)
from backburner.transport import messages as m
from backburner.transport import read_ahead
from backburner.transport.channel import SocketChannel
from backburner.transport.link import Link
from backburner.transport.memory import memory_pair
from backburner.transport.peer import Peer
from backburner.transport.read_ahead import ReadAhead
from backburner.worker import server as module
from tests.host import BEST_ENGINE, link_to, port_of, running, serving, until
from tests.transport_helpers import LONG_S

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim=64, page_tokens=32, dtype="float32", scale=0.125)
LAYERS = (3, 7)
KEY = b"k" * 32


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    shape = (2, 32, 64)
    return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)


def greeted(server, geometry: Geometry = GEOMETRY) -> Link:
    link = link_to(server)
    greet(link, geometry, LAYERS, b"model", "numpy")
    return link


def put(link: Link, key: bytes = KEY) -> None:
    for layer in LAYERS:
        k, v = rows(layer)
        assert link.exchange(m.PutPage(key, layer, 0, k[:, :20], v[:, :20])) == m.PageAck(
            key, layer, 20, False
        )
        assert link.exchange(m.PutPage(key, layer, 20, k[:, 20:], v[:, 20:])) == m.PageAck(
            key, layer, 32, True
        )


def test_welcome_says_what_the_worker_has() -> None:
    with serving(memory_bytes=2**20, engine="numpy", name="attic") as server:
        link = link_to(server)
        welcome = greet(link, GEOMETRY, LAYERS, b"model", "native")
        assert (welcome.name, welcome.engine, welcome.memory_bytes, welcome.free_bytes) == (
            "attic",
            "numpy",
            2**20,
            2**20,
        )
        link.close()


@pytest.mark.parametrize("tokens", [1, 2, 256])
def test_attend_equals_the_same_engine_here_bit_for_bit(tokens: int) -> None:
    q = np.random.default_rng(1).standard_normal((4, tokens, 64), np.float32)
    engine = NumpyEngine()
    page = engine.new_page(GEOMETRY)
    engine.append(page, *rows(7))
    expected = engine.fold(engine.attend(GEOMETRY, q, [page, page]))
    with serving(engine="numpy") as server:
        link = greeted(server)
        put(link)
        link.exchange(m.Bind(5, (KEY, KEY)))
        reply = link.exchange(m.Attend(5, 7, 0, 2, q))
        link.close()
    assert np.array_equal(reply.o, expected.o)
    assert np.array_equal(reply.lse, expected.lse)


def test_an_attend_over_many_pages_keeps_few_partials_at_once(monkeypatch) -> None:
    counts: list[int] = []
    attend = NumpyEngine.attend

    def counted(engine, geometry, q, pages, first_visible=None):
        counts.append(len(pages))
        return attend(engine, geometry, q, pages, first_visible)

    q = np.ones((4, 2, 64), np.float32)
    monkeypatch.setattr(NumpyEngine, "attend", counted)
    monkeypatch.setattr(folded, "GROUP_BYTES", 3 * q.nbytes)
    with serving(engine="numpy") as server:
        link = greeted(server)
        put(link)
        link.exchange(m.Bind(5, (KEY,) * 8))
        link.exchange(m.Attend(5, 7, 0, 8, q))
        link.close()
    assert counts == [3, 3, 2]


def test_16_bit_pages_cross_and_come_back_bit_for_bit() -> None:
    bits = np.random.default_rng(2).integers(0, 2**15, (2, 32, 64), np.uint16)
    geometry = Geometry(4, 2, 64, 32, "bfloat16", 0.125)
    with serving(engine="numpy") as server:
        link = greeted(server, geometry)
        link.exchange(m.PutPage(KEY, 3, 0, bits, bits))
        back = link.exchange(m.GetPage(KEY, 3, 4, 10))
        link.close()
    assert np.array_equal(back.k, bits[:, 4:14])
    assert np.array_equal(back.v, bits[:, 4:14])


def test_have_is_true_only_for_pages_complete_at_all_layers() -> None:
    with serving() as server:
        link = greeted(server)
        put(link)
        k, v = rows(0)
        link.exchange(m.PutPage(b"h" * 32, 3, 0, k, v))
        assert link.exchange(m.Have((b"x" * 32, KEY, b"h" * 32))).bitmap == bytes([0b010])
        assert link.exchange(m.Have((b"x" * 32, KEY, b"h" * 32), layer=3)).bitmap == bytes([0b110])
        link.close()


def test_requests_that_cannot_be_answered_get_a_named_error_and_the_link_lives() -> None:
    k, v = rows(0)
    q = np.zeros((4, 1, 64), np.float32)
    with serving(memory_bytes=make_engine(BEST_ENGINE).page_bytes(GEOMETRY) * 2) as server:
        link = greeted(server)
        with pytest.raises(UnknownPage):
            link.exchange(m.Attend(1, 3, 0, 1, q))
        with pytest.raises(UnknownPage):
            link.exchange(m.Bind(1, (KEY,)))
        with pytest.raises(BadRequest, match="layer 4"):
            link.exchange(m.PutPage(KEY, 4, 0, k, v))
        with pytest.raises(BadRequest, match="agreed in Hello"):
            link.exchange(m.PutPage(KEY, 3, 0, k[:, :, :32], v[:, :, :32]))
        with pytest.raises(BadRequest, match="agreed in Hello"):
            link.exchange(m.PutPage(KEY, 3, 0, k.astype(np.float16), v.astype(np.float16)))
        put(link)
        link.exchange(m.Bind(1, (KEY,)))
        with pytest.raises(BadRequest, match="agreed in Hello"):
            link.exchange(m.Attend(1, 3, 0, 1, np.zeros((3, 1, 64), np.float32)))
        with pytest.raises(OutOfBudget):
            link.exchange(m.PutPage(b"o" * 32, 3, 0, k, v))
        assert link.exchange(m.Attend(1, 3, 0, 1, q)).o.shape == (4, 1, 64)
        stats = link.exchange(m.Stats())
        assert (stats.pages, stats.sequences, stats.attends) == (2, 1, 1)
        link.close()


@pytest.mark.parametrize("question", [m.Attend, m.AttendAhead])
def test_a_question_about_no_page_is_refused_by_name(question, caplog) -> None:
    with serving() as server:
        link = greeted(server)
        put(link)
        link.exchange(m.Bind(1, (KEY,)))
        with pytest.raises(BadRequest, match="over no page"):
            link.exchange(question(1, 3, 0, 0, np.zeros((4, 1, 64), np.float32)))
        assert link.exchange(m.Ping()).payload is None
        link.close()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("layers", [(), (3, 7, 3)])
def test_a_hello_without_layers_or_with_one_twice_is_refused(layers: tuple[int, ...]) -> None:
    with serving() as server, pytest.raises(BadRequest, match="none, or one twice"):
        greet(link_to(server), GEOMETRY, layers, b"model", "numpy")


def test_a_second_host_is_refused_by_name_and_the_first_is_not_disturbed() -> None:
    with serving() as server:
        first = greeted(server)
        with pytest.raises(WorkerBusy, match="already serves another host"):
            greeted(server)
        assert first.exchange(m.Ping()).payload is None
        first.close()
        until(lambda: server._serving is None)
        greeted(server).close()


def test_a_silent_host_gives_way_to_one_that_calls(monkeypatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    with serving() as server:
        first = greeted(server)
        put(first)
        first.exchange(m.Bind(1, (KEY,)))
        until(lambda: server._serving.silent_s >= module.SILENT_S)
        second = greeted(server)
        assert second.exchange(m.Stats()).sequences == 0, "its sequences have ended with its connection"
        assert second.exchange(m.Have((KEY,))).bitmap == bytes([1]), "its pages have not"
        with pytest.raises(LinkClosed):
            first.exchange(m.Ping())
        monkeypatch.undo()
        with pytest.raises(WorkerBusy):
            greeted(server)
        second.close()


def test_a_host_that_waits_for_its_answer_is_not_silent(monkeypatch) -> None:
    asked, answer = threading.Event(), threading.Event()
    attend = NumpyEngine.attend

    def slow(*arguments, **options):
        asked.set()
        assert answer.wait(30)
        return attend(*arguments, **options)

    monkeypatch.setattr(NumpyEngine, "attend", slow)
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    with serving(engine="numpy") as server:
        first = greeted(server)
        put(first)
        first.exchange(m.Bind(1, (KEY,)))
        tag = first.post(m.Attend(1, 3, 0, 1, np.ones((4, 1, 64), np.float32)))
        assert asked.wait(30)
        time.sleep(2 * module.SILENT_S)
        with pytest.raises(WorkerBusy):
            greeted(server)
        answer.set()
        assert isinstance(first.wait(tag), m.PartialReply)
        first.close()


def test_a_caller_that_says_nothing_takes_no_place_of_a_silent_host(monkeypatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    monkeypatch.setattr(module, "HELLO_DEADLINE_S", 0.2)
    with serving() as server:
        first = greeted(server)
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as caller:
            while caller.recv(1024):
                pass  # until it is sent away
        assert first.exchange(m.Ping()).payload is None
        first.close()


def test_only_a_hello_takes_the_place_of_a_silent_host(monkeypatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    with serving() as server:
        first = greeted(server)
        caller = link_to(server)
        with pytest.raises(WorkerBusy):
            caller.exchange(m.Ping())
        assert first.exchange(m.Ping()).payload is None
        first.close()


def test_a_caller_that_says_nothing_does_not_keep_hosts_out_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(module, "HELLO_DEADLINE_S", 0.2)
    with serving() as server:
        silent = socket.create_connection(("127.0.0.1", port_of(server)))
        until(lambda: server._serving is not None)
        until(lambda: server._serving is None)
        greeted(server).close()
        silent.close()


@pytest.mark.parametrize("served", [False, True], ids=["nobody is served", "another is served"])
def test_a_caller_that_begins_a_hello_has_no_longer_than_a_silent_one(monkeypatch, served: bool) -> None:
    with serving() as server:
        host = greeted(server) if served else None
        monkeypatch.setattr(module, "HELLO_DEADLINE_S", 0.2)
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as caller:
            caller.sendall(b"B")
            while caller.recv(1024):
                pass  # until it is sent away
        monkeypatch.undo()
        if host is None:
            until(lambda: server._serving is None)
            host = greeted(server)
        assert host.exchange(m.Ping()).payload is None
        host.close()


def test_another_protocol_version_is_a_mismatch_on_both_sides(caplog) -> None:
    with serving() as server:
        link = link_to(server)
        hello = m.Hello(
            m.PROTOCOL_VERSION + 1,
            "backburner 9",
            "future",
            b"m",
            m.PageGeometry(4, 2, 64, 32, "float32", 0.125),
            (3,),
            "numpy",
        )
        with pytest.raises(Mismatch, match=r"speaks protocol 2, this worker .* 1"):
            link.exchange(hello)
        until(lambda: server._serving is None)
    assert "speaks protocol 2" in caplog.text


def test_a_page_that_cannot_fit_at_all_is_a_mismatch() -> None:
    with serving(memory_bytes=1000) as server, pytest.raises(Mismatch, match="--page-tokens"):
        greeted(server)
    needed = len(LAYERS) * make_engine(BEST_ENGINE).page_bytes(GEOMETRY)
    with serving(memory_bytes=needed - 1) as server, pytest.raises(Mismatch, match=f"takes {needed} bytes"):
        greeted(server)
    with serving(memory_bytes=needed) as server:
        greeted(server).close()


def test_heads_that_do_not_divide_are_a_mismatch() -> None:
    with serving() as server, pytest.raises(Mismatch, match="not a multiple"):
        greeted(server, Geometry(5, 2, 64, 32, "float32", 0.125))


def test_requests_before_hello_are_refused() -> None:
    with serving() as server:
        link = link_to(server)
        with pytest.raises(BadRequest, match="before Hello"):
            link.exchange(m.Stats())


def test_bytes_that_are_no_frame_close_the_link_and_the_worker_lives() -> None:
    with serving() as server:
        for noise in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 4096, bytes(range(256))):
            with socket.create_connection(("127.0.0.1", port_of(server)), timeout=5) as raw:
                raw.sendall(noise)
                raw.settimeout(5)
                while raw.recv(4096):
                    pass
            until(lambda: server._serving is None)
        greeted(server).close()


def test_pages_outlive_the_host_that_sent_them() -> None:
    with serving() as server:
        link = greeted(server)
        put(link)
        link.close()
        until(lambda: server._serving is None)
        again = greeted(server)
        assert again.exchange(m.Have((KEY,))).bitmap == bytes([1])
        again.close()


def test_a_stopped_worker_ends_the_hosts_link() -> None:
    with serving() as server:
        link = greeted(server)
    with pytest.raises(LinkClosed):
        link.exchange(m.Ping())


class OneCaller:
    """A door with one caller: this end of a pair of Unix sockets, as usbmuxd hands them over."""

    address = "pair"

    def __init__(self) -> None:
        near, far = socket.socketpair()
        for end in (near, far):  # much less than a question or a partial
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        self.host = SocketChannel(near, "worker")
        self._caller: SocketChannel | None = SocketChannel(far, "host")
        self._closed = threading.Event()

    def accept(self, timeout_s: float | None = None) -> SocketChannel:
        if self._caller is not None:
            caller, self._caller = self._caller, None
            return caller
        if self._closed.wait(timeout_s):
            raise LinkClosed("closed")
        raise LinkTimeout("no other caller")

    def close(self) -> None:
        self._closed.set()


def test_questions_and_partials_larger_than_all_buffers_pass_each_other() -> None:
    """The host sends the second question before it reads the first partial, which the worker is sending."""
    door = OneCaller()
    q = np.random.default_rng(2).standard_normal((4, 2048, 64), np.float32)  # 2 MB, and so is its partial
    with running(module.WorkerServer(door, make_engine("numpy"), 2**20, "test", ("numpy",))):
        link = Link(door.host, timeout_s=20.0)
        greet(link, GEOMETRY, LAYERS, b"model", "numpy")
        put(link)
        link.exchange(m.Bind(5, (KEY,)))
        tags = [link.post(m.Attend(5, 7, 0, 1, q)), link.post(m.Attend(5, 7, 0, 1, -q))]
        tags.append(link.post(m.PutPage(b"another key, of a page to keep..", 7, 0, *rows(1))))
        tags.append(link.post(m.Attend(5, 3, 0, 1, q)))
        replies = [link.wait(tag) for tag in tags]
        assert [type(r) for r in replies] == [m.PartialReply, m.PartialReply, m.PageAck, m.PartialReply]
        assert not np.array_equal(replies[0].o, replies[1].o)
        link.close()


def test_a_host_that_does_not_wait_is_read_no_further_than_the_bound() -> None:
    near, far = memory_pair()
    peer = Peer(far)
    requests = ReadAhead(peer, idle_s=60.0, bytes_max=1_000_000)
    link = Link(near, timeout_s=LONG_S)
    ping = m.Ping(echo=False, payload=np.zeros(300_000, np.uint8))
    tags: list[int] = []
    host = threading.Thread(target=lambda: tags.extend(link.post(ping) for _ in range(8)), daemon=True)
    host.start()
    with requests.replying():
        until(lambda: peer.bytes_received > 1_000_000)
        time.sleep(0.1)
        assert peer.bytes_received < 1_600_000
    received = [requests.receive()[0] for _ in range(8)]
    host.join(LONG_S)
    assert received == tags
    link.close()
    for _ in range(2):
        with pytest.raises(LinkClosed, match=r"goodbye|closed"):
            requests.receive()


def test_requests_that_came_before_the_host_left_are_received() -> None:
    near, far = memory_pair()
    requests = ReadAhead(Peer(far), idle_s=60.0)
    link = Link(near)
    tags = [link.post(m.Ping()) for _ in range(3)]
    link.close()
    with requests.replying():
        until(lambda: requests._ended is not None)
    assert [requests.receive()[0] for _ in tags] == tags
    with pytest.raises(LinkClosed):
        requests.receive()


def test_nobody_reads_ahead_while_replies_are_quick() -> None:
    near, far = memory_pair()
    requests = ReadAhead(Peer(far), idle_s=60.0)
    link = Link(near)
    for _ in range(50):
        tag = link.post(m.Ping())
        assert requests.receive()[0] == tag
        with requests.replying():
            pass
        assert not requests._taken
    link.close()


def test_a_slow_reply_is_noticed_after_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "AWAKE_S", 0.01)
    near, far = memory_pair()
    requests = ReadAhead(Peer(far), idle_s=60.0)
    link = Link(near)
    for _ in range(20):
        until(lambda: requests._asleep)
        tag = link.post(m.Ping())
        with requests.replying():
            until(lambda: len(requests._waiting) == 1)
        assert requests.receive()[0] == tag
        last = link.post(m.Ping())  # the thread that took over hands back when it has read one more
        assert requests.receive()[0] == last
    link.close()


def test_a_full_queue_does_not_keep_the_reading_thread() -> None:
    near, far = memory_pair()
    peer = Peer(far)
    threads = threading.active_count()
    requests = ReadAhead(peer, idle_s=60.0, bytes_max=1)
    link = Link(near)
    for _ in range(4):
        link.post(m.Ping())
    with requests.replying():
        until(lambda: len(requests._waiting) == 2)
    requests.close()
    peer.close()
    until(lambda: threading.active_count() <= threads)
