"""Links: replies find their askers, every wait ends, and whatever breaks a link breaks it cleanly."""

import os
import socket
import threading
import time

import numpy as np
import pytest

from backburner.errors import (
    LinkClosed,
    LinkTimeout,
    OutOfBudget,
    ProtocolError,
    RemoteError,
    TransportError,
)
from backburner.transport import codec
from backburner.transport import messages as m
from backburner.transport.channel import SocketChannel
from backburner.transport.link import Link
from backburner.transport.memory import memory_pair
from backburner.transport.peer import Peer
from backburner.transport.shaped import ShapedChannel
from tests.transport_helpers import LONG_S, FaultyChannel, in_thread, same, tcp_pair

KEY = bytes(range(16))
SOON_S = 0.15  # a deadline that tests wait for


def unix_pair():
    near, far = socket.socketpair()
    return SocketChannel(near, "near"), SocketChannel(far, "far")


def shaped_pair():
    near, far = tcp_pair()
    return ShapedChannel(near, 200e6, 0.001), far


PAIRS = {"memory": memory_pair, "tcp": tcp_pair, "unix": unix_pair, "shaped": shaped_pair}


@pytest.fixture(params=PAIRS)
def pair(request):
    near, far = PAIRS[request.param]()
    yield near, far
    near.close()
    far.close()


def answer(request):
    """What a small worker would say; numbers in requests come back so that a mix-up shows."""
    match request:
        case m.Ping():
            return m.Pong(request.payload if request.echo else None)
        case m.Attend(q=q):
            return m.PartialReply(q.astype(np.float32), np.full(q.shape[:2], request.layer, np.float32))
        case m.PutPage():
            return m.PageAck(request.key, request.layer, request.row0 + request.k.shape[1], False)
        case m.Have():
            return m.HaveReply(b"\x01")
        case m.GetPage():
            rows = np.full((2, request.rows, 4), request.row0, np.float32)
            return m.PageRows(rows, rows)
        case _:
            return m.Ok()


def serve(channel, **options):
    """Answers until the host is gone."""
    peer = Peer(channel, **options)
    try:
        while True:
            tag, request = peer.receive(LONG_S)
            peer.reply(tag, answer(request))
    except LinkClosed:
        peer.close()


def serve_in_reverse(channel, batch):
    """Collects requests and answers each batch last come, first served."""
    peer = Peer(channel)
    waiting = []
    try:
        while True:
            waiting.append(peer.receive(LONG_S))
            if len(waiting) == batch:
                for tag, request in reversed(waiting):
                    peer.reply(tag, answer(request))
                waiting.clear()
    except LinkClosed:
        peer.close()


def attend(layer):
    return m.Attend(1, layer, 0, 1, np.full((2, 3, 4), layer, np.float32))


def test_each_request_gets_its_reply(pair):
    near, far = pair
    with in_thread(serve, far):
        link = Link(near, LONG_S)
        payload = np.arange(100, dtype=np.int32)
        assert same(link.exchange(m.Ping(True, payload)), m.Pong(payload))
        assert link.exchange(m.Ping()).payload is None
        assert link.exchange(m.Have([KEY])) == m.HaveReply(b"\x01")
        assert link.exchange(m.Bind(1, [KEY])) == m.Ok()
        assert link.exchange(attend(5)).lse[1, 2] == 5
        assert link.exchanges == 5
        assert link.bytes_sent > 400
        assert link.bytes_received > 400
        link.close()


def test_bodies_larger_than_every_buffer_cross_whole(pair):
    near, far = pair
    payload = np.random.default_rng(1).integers(0, 256, 3_000_001, np.uint8)
    with in_thread(serve, far):
        link = Link(near, LONG_S)
        for _ in range(3):
            assert same(link.exchange(m.Ping(True, payload)), m.Pong(payload))
        rows = payload[: 2 * 5000 * 4 * 4].view(np.float32).reshape(2, 5000, 4)
        assert link.exchange(m.PutPage(KEY, 1, 7, rows, rows)).rows == 5007
        link.close()


def test_a_send_of_more_parts_than_one_system_call_takes_arrives_in_order():
    near, far = unix_pair()
    parts = [bytes([i % 251]) * 3 for i in range(3000)]
    with in_thread(lambda: near.send(parts, time.monotonic() + LONG_S)):
        got = bytearray()
        while len(got) < 9000:
            space = bytearray(1000)
            got += space[: far.recv_into(memoryview(space), time.monotonic() + LONG_S)]
    assert got == b"".join(parts)
    near.close()


def test_several_requests_may_be_in_flight_and_waited_for_in_any_order(pair):
    near, far = pair
    with in_thread(serve_in_reverse, far, 4):
        link = Link(near, LONG_S)
        tags = [link.post(attend(layer)) for layer in range(4)]
        for layer in (2, 0, 3, 1):
            assert link.wait(tags[layer]).lse[0, 0] == layer
        link.close()


def test_two_threads_share_a_link_whose_replies_come_out_of_order(pair):
    near, far = pair
    rounds = 200

    def attends(link):
        for layer in range(rounds):
            assert link.exchange(attend(layer)).lse[0, 0] == layer

    def puts(link):
        rows = np.zeros((2, 50, 4), np.float32)
        for row0 in range(rounds):
            assert link.exchange(m.PutPage(KEY, 1, row0, rows, rows)).rows == row0 + 50

    with in_thread(serve_in_reverse, far, 2):
        link = Link(near, LONG_S)
        with in_thread(attends, link), in_thread(puts, link):
            pass
        assert link.exchanges == 2 * rounds
        link.close()


def test_many_threads_share_a_link():
    near, far = memory_pair()

    def work(link, start):
        for layer in range(start, start + 50):
            assert link.exchange(attend(layer)).lse[0, 0] == layer

    with in_thread(serve, far):
        link = Link(near, LONG_S)
        threads = [threading.Thread(target=work, args=(link, 1000 * i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert link.exchanges == 400
        link.close()


def test_an_error_reply_raises_its_class_and_leaves_the_link_open(pair):
    near, far = pair

    def refuse():
        peer = Peer(far)
        peer.reply_error(peer.receive(LONG_S)[0], "out_of_budget", "64 MiB free")
        peer.reply_error(peer.receive(LONG_S)[0], "too_hot", "x" * 10_000)
        peer.reply(peer.receive(LONG_S)[0], m.Pong())

    with in_thread(refuse):
        link = Link(near, LONG_S)
        with pytest.raises(OutOfBudget, match="64 MiB free"):
            link.exchange(m.Bind(1, []))
        with pytest.raises(RemoteError, match="too_hot: x"):
            link.exchange(m.Bind(1, []))
        assert link.alive
        link.exchange(m.Ping())
    link.close()


def test_silence_ends_in_a_timeout_that_closes_the_link(pair):
    near, far = pair
    link = Link(near, SOON_S)
    start = time.monotonic()
    with pytest.raises(LinkTimeout):
        link.exchange(m.Ping())
    assert SOON_S <= time.monotonic() - start < LONG_S
    assert not link.alive
    with pytest.raises(LinkClosed, match="did not move a byte"):
        link.exchange(m.Ping())
    with in_thread(serve, far):
        pass  # the worker sees the end of the stream


def test_a_late_reply_reaches_nobody(pair):
    near, far = pair
    link = Link(near, LONG_S)
    peer = Peer(far)
    tag = link.post(attend(1))
    with pytest.raises(LinkTimeout):
        link.wait(tag, SOON_S)
    late_tag, request = peer.receive(LONG_S)
    with pytest.raises(LinkClosed):
        peer.receive(LONG_S)
    with pytest.raises(LinkClosed):
        peer.reply(late_tag, answer(request))
    with pytest.raises(LinkClosed):
        link.exchange(attend(2))


def test_a_worker_that_sends_a_byte_now_and_then_does_not_extend_the_deadline(pair):
    near, far = pair
    reply = b"".join(codec.encode(m.Pong(np.zeros(1000, np.uint8)), 1))
    stop = threading.Event()

    def drip():
        for byte in reply:
            if stop.wait(0.02):
                return
            far.send([bytes([byte])], time.monotonic() + LONG_S)

    with in_thread(drip):
        link = Link(near, LONG_S)
        start = time.monotonic()
        with pytest.raises(LinkTimeout):
            link.exchange(m.Ping(), timeout_s=SOON_S)
        assert time.monotonic() - start < 10 * SOON_S
        stop.set()


def test_a_worker_that_reads_nothing_does_not_hold_a_sender_past_its_deadline(pair):
    near, _ = pair
    link = Link(near, SOON_S)
    with pytest.raises(LinkTimeout):
        link.exchange(m.Ping(False, np.zeros(50_000_000, np.uint8)))
    assert not link.alive


def test_a_timeout_of_one_thread_ends_the_wait_of_the_other(pair):
    near, far = pair
    link = Link(near, LONG_S)
    ended = []

    def wait_long():
        try:
            link.exchange(attend(1), timeout_s=LONG_S)
        except TransportError as error:
            ended.append(error)

    with in_thread(wait_long):
        time.sleep(0.05)  # the long wait reads for both
        with pytest.raises(LinkTimeout):
            link.exchange(attend(2), timeout_s=SOON_S)
    assert isinstance(ended[0], LinkClosed)
    far.close()


def test_end_of_file_reaches_all_who_wait_at_once(pair):
    near, far = pair
    link = Link(near, LONG_S)
    ended = []

    def wait(layer):
        try:
            link.exchange(attend(layer))
        except TransportError as error:
            ended.append(type(error))

    start = time.monotonic()
    with in_thread(wait, 1), in_thread(wait, 2), in_thread(wait, 3):
        time.sleep(0.05)
        far.close()
    assert ended == [LinkClosed] * 3
    assert time.monotonic() - start < LONG_S / 2
    assert not link.alive


def test_closing_from_another_thread_wakes_who_waits(pair):
    near, far = pair
    link = Link(near, LONG_S)

    def wait():
        with pytest.raises(LinkClosed, match="this side closed"):
            link.exchange(m.Ping())

    with in_thread(wait):
        time.sleep(0.05)
        link.close()
    link.close()
    far.close()


def test_the_end_of_the_stream_at_any_byte_of_a_reply_is_a_closed_link():
    reply = b"".join(codec.encode(m.PageRows(*[np.ones((1, 4, 8), np.float32)] * 2), 1))
    for cut in range(len(reply)):
        near, far = memory_pair()
        link = Link(near, LONG_S)
        far.send([reply[:cut]], time.monotonic() + LONG_S)
        far.close_sending()
        with pytest.raises(LinkClosed, match="middle of a frame" if cut else "closed the link$"):
            link.exchange(m.GetPage(KEY, 1, 0, 4))
        assert not link.alive


def test_a_flipped_bit_anywhere_in_checked_rows_never_passes_for_the_rows():
    rows = m.PageRows(*[np.ones((1, 2, 2), np.float32)] * 2)
    reply = b"".join(codec.encode(rows, 1))
    for bit in range(8 * len(reply)):
        near, far = memory_pair()
        link = Link(FaultyChannel(near, flip_bit=bit), 0.005)
        far.send([reply], time.monotonic() + LONG_S)
        # Only a length that became larger leaves something to wait for; an Error or Bye kind is not possible.
        with pytest.raises((ProtocolError, LinkTimeout, LinkClosed)):
            link.exchange(m.GetPage(KEY, 1, 0, 2))
        assert not link.alive, bit


def test_one_byte_at_a_time_is_slow_but_right(pair):
    near, far = pair
    with in_thread(serve, far):
        link = Link(FaultyChannel(near, dribble=True), LONG_S)
        for layer in range(5):
            assert link.exchange(attend(layer)).lse[0, 0] == layer
        link.close()


@pytest.mark.parametrize("bytes_read", [0, 10, 40, 100])
def test_a_stall_in_the_middle_of_a_reply_ends_in_a_timeout(pair, bytes_read):
    near, far = pair
    with in_thread(serve, far):
        link = Link(FaultyChannel(near, stall_after=bytes_read), LONG_S)
        with pytest.raises(LinkTimeout):
            link.exchange(attend(1), timeout_s=SOON_S)
        assert not link.alive


def test_a_reply_that_nobody_asked_for_closes_the_link(pair):
    near, far = pair
    link = Link(near, LONG_S)
    far.send(codec.encode(m.Pong(), 77), time.monotonic() + LONG_S)
    with pytest.raises(ProtocolError, match="nobody made"):
        link.exchange(m.Ping())
    assert not link.alive


def test_a_second_reply_to_one_request_closes_the_link():
    near, far = memory_pair()
    link = Link(near, LONG_S)
    first, second = link.post(m.Ping()), link.post(m.Ping())
    far.send(codec.encode(m.Pong(), first) + codec.encode(m.Pong(), first), time.monotonic() + LONG_S)
    with pytest.raises(ProtocolError, match="nobody made"):
        link.wait(second)


def test_a_reply_of_the_wrong_kind_closes_the_link(pair):
    near, far = pair
    link = Link(near, LONG_S)
    tag = link.post(attend(1))
    far.send(codec.encode(m.Ok(), tag), time.monotonic() + LONG_S)
    with pytest.raises(ProtocolError, match="Ok instead of PartialReply"):
        link.wait(tag)
    assert not link.alive


def test_a_body_over_the_connections_own_limit_closes_the_link():
    near, far = memory_pair()
    with in_thread(serve, far):
        link = Link(near, LONG_S, body_max=1000)
        link.exchange(m.Ping(True, np.zeros(1000, np.uint8)))
        with pytest.raises(ProtocolError, match="limit of 1000"):
            link.exchange(m.Ping(True, np.zeros(1001, np.uint8)))


def test_a_request_that_cannot_be_encoded_leaves_the_link_as_it_was(pair):
    near, far = pair
    with in_thread(serve, far):
        link = Link(near, LONG_S)
        with pytest.raises(ValueError, match="page key"):
            link.exchange(m.Have([b"short"]))
        link.exchange(m.Ping())
        link.close()


def test_a_goodbye_closes_the_other_end(pair):
    near, far = pair
    link, peer = Link(near, LONG_S), Peer(far)
    tag = link.post(m.Ping())
    peer.close()
    with pytest.raises(LinkClosed, match="said goodbye"):
        link.wait(tag)
    assert not link.alive


def test_measuring_leaves_figures_on_the_link(pair):
    near, far = pair
    with in_thread(serve, far):
        link = Link(near, LONG_S)
        assert link.speed is None
        speed = link.measure()
        assert speed is link.speed
        assert speed.rtt_us > 0
        assert speed.p90_us > 0
        assert speed.bytes_per_s > 0
        link.close()


def test_a_host_is_silent_only_when_it_waits_for_nothing(pair):
    near, far = pair
    link, peer = Link(near, LONG_S), Peer(far)
    assert peer.silent_s > 0
    ping = link.post(m.Ping())
    tag, request = peer.receive(LONG_S)
    assert peer.silent_s == 0.0, "it waits for the answer"
    peer.reply(tag, answer(request))
    assert peer.silent_s > 0
    link.wait(ping)
    link.post(m.GetState(1, 3, 512))
    peer.receive(LONG_S)
    assert peer.silent_s > 0, "the worker waits for the host's chunk"


def test_an_idle_host_is_no_reason_to_close(pair):
    near, far = pair
    link, peer = Link(near, LONG_S), Peer(far, LONG_S)
    for _ in range(2):
        with pytest.raises(LinkTimeout):
            peer.receive(0.02)
        assert peer.alive
    tag = link.post(m.Release(5))
    assert peer.receive(LONG_S) == (tag, m.Release(5))


def test_a_request_that_begins_and_does_not_end_closes_the_workers_side(pair):
    near, far = pair
    peer = Peer(far, SOON_S)
    near.send([b"".join(codec.encode(m.Release(5), 1))[:40]], time.monotonic() + LONG_S)
    with pytest.raises(LinkTimeout):
        peer.receive(LONG_S)
    assert not peer.alive


def test_a_request_has_the_links_own_time_to_arrive_once_it_has_begun():
    near, far = memory_pair()
    peer = Peer(far, LONG_S)
    data = b"".join(codec.encode(m.Release(5), 1))
    near.send([data[:40]], time.monotonic() + LONG_S)

    def finish():
        time.sleep(0.1)
        near.send([data[40:]], time.monotonic() + LONG_S)

    with in_thread(finish):
        assert peer.receive(0.02) == (1, m.Release(5))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "protocol_error: not a Backburner frame"),
        (b"".join(codec.encode(m.Pong(), 5)), "protocol_error: Pong with tag 5 is not a request"),
        (b"".join(codec.encode(m.Release(5), 0)), "protocol_error: Release with tag 0 is not a request"),
    ],
)
def test_a_worker_says_why_it_hangs_up(pair, data, reason):
    near, far = pair
    link, peer = Link(near, LONG_S), Peer(far)
    tag = link.post(m.Ping())
    peer.receive(LONG_S)
    near.send([data], time.monotonic() + LONG_S)
    with pytest.raises(ProtocolError):
        peer.receive(LONG_S)
    assert not peer.alive
    with pytest.raises(LinkClosed, match=reason):
        link.wait(tag)


def test_a_link_that_failed_and_was_dropped_frees_its_descriptor():
    near, far = tcp_pair()
    descriptor = near._sock.fileno()
    link = Link(near, LONG_S)
    far.close()
    with pytest.raises(LinkClosed):
        link.exchange(m.Ping())
    del near, link
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
