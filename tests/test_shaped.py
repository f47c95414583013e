"""A shaped channel keeps to its bandwidth and delay, and is otherwise a channel like any other.

Only lower bounds of times are asserted: a busy machine may make anything later.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.engine.worker_link import greet
from backburner.errors import LinkClosed, LinkTimeout, ProtocolError
from backburner.transport import messages as m
from backburner.transport.channel import Channel, SocketChannel
from backburner.transport.link import Link
from backburner.transport.memory import MemoryChannel, memory_pair
from backburner.transport.shaped import BUFFER_BYTES, ShapedChannel
from backburner.transport.tcp import connect
from tests.host import port_of, serving, until

LONG_S = 30.0  # a deadline that no test reaches
SOON_S = 0.15  # one that tests wait for


def soon() -> float:
    return time.monotonic() + SOON_S


def long() -> float:
    return time.monotonic() + LONG_S


def memory() -> tuple[Channel, Channel]:
    return memory_pair()


def unix() -> tuple[Channel, Channel]:
    near, far = socket.socketpair()
    return SocketChannel(near, "near"), SocketChannel(far, "far")


@pytest.fixture(params=[memory, unix], ids=["memory", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    near, far = request.param()
    yield near, far
    near.close()
    far.close()


@contextmanager
def running(target: Callable[[], object]) -> Iterator[None]:
    """The target in a thread that must have ended, without an exception, soon after the block."""
    failed: list[BaseException] = []

    def body() -> None:
        try:
            target()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    yield
    thread.join(LONG_S)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def read(channel: Channel, count: int, step: int = 2**16) -> bytes:
    """That many bytes, or fewer if the stream ends."""
    space = bytearray(count)
    done = 0
    while done < count and (got := channel.recv_into(memoryview(space)[done : done + step], long())):
        done += got
    return bytes(space[:done])


def noise(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def pumps() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name in ("in memory", "out memory")}


def test_each_direction_keeps_to_the_bandwidth(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    shaped = ShapedChannel(near, 8e6, 0.0)
    data = noise(1, 1_000_000)
    for sender, receiver in ((shaped, far), (far, shaped)):
        start = time.monotonic()
        with running(lambda sender=sender: sender.send([data], long())):
            assert read(receiver, len(data)) == data
        assert time.monotonic() - start >= 0.124
    shaped.close()


def test_a_direction_that_is_stuck_does_not_hold_the_other() -> None:
    data = noise(2, 3 * BUFFER_BYTES)
    for stuck_is_ours in (True, False):
        near, far = memory_pair()
        shaped = ShapedChannel(near, None, 0.0)
        stuck, free = (shaped, far) if stuck_is_ours else (far, shaped)
        with pytest.raises(LinkTimeout):
            stuck.send([bytes(10 * BUFFER_BYTES)], soon())
        with running(lambda free=free: free.send([data], long())):
            assert read(stuck, len(data)) == data, "nobody reads what the stuck end sends"
        shaped.close()
        far.close()


def test_both_directions_at_once_each_keep_to_the_bandwidth(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    shaped = ShapedChannel(near, 8e6, 0.0)
    there, back = noise(1, 2_000_000), noise(2, 2_000_000)
    took_s: list[float] = []
    start = time.monotonic()

    def receive(channel: Channel, data: bytes) -> None:
        assert read(channel, len(data)) == data
        took_s.append(time.monotonic() - start)

    with (
        running(lambda: shaped.send([there], long())),
        running(lambda: far.send([back], long())),
        running(lambda: receive(shaped, back)),
        running(lambda: receive(far, there)),
    ):
        pass
    assert min(took_s) >= 0.249
    shaped.close()


def test_a_round_trip_takes_its_time(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    shaped = ShapedChannel(near, None, 0.2)
    start = time.monotonic()
    shaped.send([b"ping"], long())
    assert read(far, 4) == b"ping"
    assert time.monotonic() - start >= 0.1
    far.send([b"pong"], long())
    assert read(shaped, 4) == b"pong"
    assert time.monotonic() - start >= 0.2
    shaped.close()


def test_a_sender_blocks_when_more_is_out_than_a_buffer(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    shaped = ShapedChannel(near, 8e6, 0.0)
    data = bytes(2 * BUFFER_BYTES)
    with running(lambda: read(far, len(data))):
        start = time.monotonic()
        assert shaped.send([data], long()) == len(data)
        # All but the buffer has crossed by now, and what is in the pump's hands.
        assert time.monotonic() - start >= (BUFFER_BYTES - 2**18) / 8e6
    shaped.close()


@pytest.mark.parametrize(("bandwidth", "rtt_s"), [(None, 0.0), (40e6, 0.003), (3e6, 0.0), (None, 0.01)])
def test_random_writes_both_ways_at_once_arrive_whole_and_in_order(
    pair: tuple[Channel, Channel], bandwidth: float | None, rtt_s: float
) -> None:
    near, far = pair
    shaped = ShapedChannel(near, bandwidth, rtt_s)
    sizes = np.random.default_rng(7)

    def write(channel: Channel, data: bytes, cuts: list[int]) -> None:
        """In sends of a few parts each."""
        parts = [memoryview(data)[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        for at in range(0, len(parts), 3):
            some = parts[at : at + 3]
            assert channel.send(some, long()) == sum(map(len, some))

    there, back = noise(3, 1_500_000), noise(4, 1_500_000)
    cuts = [sorted(sizes.integers(0, 1_500_000, 200).tolist()) for _ in range(2)]
    got: list[bytes] = []
    with (
        running(lambda: write(shaped, there, cuts[0])),
        running(lambda: write(far, back, cuts[1])),
        running(lambda: got.append(read(shaped, len(back), step=50_021))),
    ):
        assert read(far, len(there), step=30_011) == there
    assert got == [back]
    shaped.close()


def test_what_the_sender_does_with_its_buffer_afterwards_does_not_matter() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(near, None, 0.1)
    buffer = bytearray(b"first")
    shaped.send([buffer], long())
    buffer[:] = b"XXXXX"
    assert read(far, 5) == b"first"
    shaped.close()


def test_the_end_of_the_stream_comes_after_its_last_byte() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(near, 8e6, 0.1)
    data = noise(5, 200_000)
    start = time.monotonic()
    far.send([data], long())
    far.close_sending()
    assert read(shaped, len(data) + 1) == data
    assert time.monotonic() - start >= 0.074
    assert shaped.recv_into(memoryview(bytearray(1)), long()) == 0, "and stays"
    shaped.close()


class Breaking(MemoryChannel):
    """Ends with an error where others end."""

    def recv_into(self, space: memoryview, deadline: float) -> int:
        count = super().recv_into(space, deadline)
        if not count:
            raise ProtocolError("the cable spoke in tongues")
        return count


def test_an_error_comes_after_the_bytes_before_it() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(Breaking(near._incoming, near._outgoing), None, 0.05)
    far.send([b"last words"], long())
    far.close_sending()
    assert read(shaped, 10) == b"last words"
    for _ in range(2):
        with pytest.raises(ProtocolError, match="in tongues"):
            shaped.recv_into(memoryview(bytearray(1)), long())
    shaped.close()


def test_deadlines_end_a_read_and_a_send(pair: tuple[Channel, Channel]) -> None:
    near, _ = pair
    shaped = ShapedChannel(near, 1e5, 0.0)
    start = time.monotonic()
    with pytest.raises(LinkTimeout):
        shaped.recv_into(memoryview(bytearray(1)), soon())
    with pytest.raises(LinkTimeout):
        shaped.send([bytes(2 * BUFFER_BYTES)], soon())
    assert time.monotonic() - start >= 2 * SOON_S
    shaped.close()


def test_a_byte_under_way_is_not_there_before_its_time() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(near, None, 2.0)
    far.send([b"x"], long())
    with pytest.raises(LinkTimeout):
        shaped.recv_into(memoryview(bytearray(1)), soon())
    assert read(shaped, 1) == b"x", "and a missed deadline loses nothing"
    shaped.close()


def test_close_wakes_a_blocked_sender_and_a_blocked_reader(pair: tuple[Channel, Channel]) -> None:
    near, _ = pair
    shaped = ShapedChannel(near, 1e6, 0.0)

    def send() -> None:
        with pytest.raises(LinkClosed):
            shaped.send([bytes(50_000_000)], time.monotonic() + 1000)

    def receive() -> None:
        assert shaped.recv_into(memoryview(bytearray(1)), time.monotonic() + 1000) == 0

    with running(send), running(receive):
        time.sleep(0.1)
        shaped.close()
    shaped.close()
    with pytest.raises(LinkClosed):
        shaped.send([b"more"], long())
    assert shaped.recv_into(memoryview(bytearray(1)), long()) == 0


def test_what_was_sent_before_a_close_still_arrives_and_then_the_end(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    shaped = ShapedChannel(near, 4e6, 0.1)
    data = noise(6, 400_000)
    start = time.monotonic()
    shaped.send([data], long())
    shaped.close()
    assert read(far, len(data) + 1) == data
    assert time.monotonic() - start >= 0.149


def test_a_close_frees_a_peer_that_is_stuck_in_sending() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(near, None, 0.0)
    data = noise(8, BUFFER_BYTES)
    shaped.send([data], long())

    def peer() -> None:
        far.send([bytes(10 * BUFFER_BYTES)], long())
        assert read(far, len(data) + 1) == data

    with running(peer):
        time.sleep(0.05)
        shaped.close()


def test_close_ends_both_threads() -> None:
    before = pumps()
    near, far = memory_pair()
    shaped = ShapedChannel(near, 1e6, 0.01)
    ours = pumps() - before
    assert len(ours) == 2
    shaped.send([b"bye"], long())
    shaped.close()
    until(lambda: not any(thread.is_alive() for thread in ours))
    assert read(far, 4) == b"bye"


def test_a_peer_that_is_gone_fails_the_sender_and_wakes_it() -> None:
    near, far = memory_pair()
    shaped = ShapedChannel(near, None, 0.0)

    def send() -> None:
        with pytest.raises(LinkClosed, match="the memory channel is closed"):
            shaped.send([bytes(10 * BUFFER_BYTES)], long())

    with running(send):
        time.sleep(0.05)
        far.close()
    shaped.close()


def test_a_link_to_a_worker_works_over_a_shaped_channel() -> None:
    geometry = Geometry(q_heads=4, kv_heads=2, head_dim=64, page_tokens=32, dtype="float32", scale=0.125)
    generator = np.random.default_rng(1)
    k, v = (generator.standard_normal((2, 32, 64), np.float32) for _ in range(2))
    q = generator.standard_normal((4, 3, 64), np.float32)
    engine = NumpyEngine()
    page = engine.new_page(geometry)
    engine.append(page, k, v)
    expected = engine.fold(engine.attend(geometry, q, [page]))
    key = b"k" * 32
    with serving(engine="numpy") as server:
        link = Link(ShapedChannel(connect("127.0.0.1", port_of(server)), 60e6, 0.004), LONG_S)
        greet(link, geometry, (3,), b"model", "numpy")
        speed = link.measure()
        assert speed.rtt_us >= 4000
        # At least the time of the bytes; half of it is the floor that `measure` puts under its subtraction.
        assert speed.bytes_per_s <= 120e6
        assert link.exchange(m.PutPage(key, 3, 0, k, v)).rows == 32
        link.exchange(m.Bind(5, (key,)))
        reply = link.exchange(m.Attend(5, 3, 0, 1, q))
        assert np.array_equal(reply.o, expected.o)
        assert np.array_equal(reply.lse, expected.lse)
        link.close()
        # The goodbye crosses, and the next host is taken.
        until(lambda: server._serving is None)
