"""Bulk links: a stream in transfers, sessions over a pipe that has no beginning, and our frames over both.

The endpoints are packet sockets: like bulk pipes they keep the ends of transfers, and keep what nobody has read. A real
FunctionFS needs a kernel with dummy_hcd: tests/test_usb_vm.py.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.attention.numpy_engine import NumpyEngine
from backburner.devices import probe
from backburner.errors import ConfigError, LinkClosed, LinkTimeout, WorkerBusy
from backburner.transport import bulk, cable, functionfs
from backburner.transport.bulk import BulkChannel, connect
from backburner.transport.functionfs import GadgetDoor
from backburner.transport.link import Link
from backburner.transport.messages import Ping
from backburner.transport.peer import Peer
from backburner.transport.transfers import (
    NONCE_BYTES,
    PACKET_BYTES,
    READ_BYTES,
    Mark,
    into_transfers,
    unpack_mark,
)
from backburner.worker.server import WorkerServer

DEADLINE_S = 10.0


def soon() -> float:
    return time.monotonic() + DEADLINE_S


class Wire:
    """The host's side of a packet socket: implements bulk.Endpoints."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def write(self, data: bytes, timeout_s: float) -> int:
        self.sock.settimeout(timeout_s)
        return self.sock.send(data)

    def read(self, timeout_s: float) -> bytes:
        self.sock.settimeout(timeout_s)
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise OSError("the cable is out")
        return data

    def close(self) -> None:
        pass  # the pipe is there as long as the cable is


class Cable:
    """A gadget with its door, and the host's end of the pipe."""

    def __init__(self) -> None:
        host, gadget = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._gadget = gadget
        self.wire = Wire(host)
        self.door = GadgetDoor(self._read, gadget.send, "ffs:test")

    def _read(self) -> bytes:
        data = self._gadget.recv(READ_BYTES)
        if not data:
            raise OSError("the cable is out")
        return data

    def pull(self) -> None:
        self.wire.sock.shutdown(socket.SHUT_RDWR)

    def sessions(self) -> tuple[BulkChannel, functionfs.GadgetChannel]:
        host = BulkChannel(self.wire, "gadget", DEADLINE_S)
        return host, self.door.accept(DEADLINE_S)


@pytest.fixture
def wired() -> Iterator[Cable]:
    cable = Cable()
    yield cable
    cable.door.close()
    with contextlib.suppress(OSError):
        cable.pull()


def read_exactly(channel: BulkChannel | functionfs.GadgetChannel, count: int) -> bytes:
    got = bytearray()
    space = memoryview(bytearray(1000))
    while len(got) < count:
        n = channel.recv_into(space[: min(1000, count - len(got))], soon())
        assert n
        got += space[:n]
    return bytes(got)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from([0, 1, 31, 33, 63, 64, 65, 512, 1024, 65_534, 65_535, 65_536, 131_072]), max_size=6
    )
)
def test_transfers_carry_all_bytes_and_each_ends_with_a_short_packet(lengths: list[int]) -> None:
    parts = [os.urandom(length) for length in lengths]
    transfers = list(into_transfers(parts))
    assert b"".join(transfers) == b"".join(parts)
    for transfer in transfers:
        assert 0 < len(transfer) < READ_BYTES
        assert len(transfer) % PACKET_BYTES


@given(st.sampled_from(["open", "answer", "end"]), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_a_mark_is_read_back_and_nothing_else_is_one(kind, nonce: bytes) -> None:
    packed = Mark(kind, nonce).pack()
    assert unpack_mark(packed) == Mark(kind, nonce)
    assert len(packed) % PACKET_BYTES
    for damaged in (packed[:-1], packed + b"x", b"x" + packed[1:], packed[:16] + b"?" + packed[17:], b""):
        assert unpack_mark(damaged) is None


def test_bytes_cross_both_ways_whatever_their_length(wired: Cable) -> None:
    host, gadget = wired.sessions()
    for length in (1, 64, 4096, 65_536, 3_000_000):
        data = os.urandom(length)
        for sender, receiver in ((host, gadget), (gadget, host)):
            thread = threading.Thread(target=sender.send, args=([data[:7], data[7:]], soon()))
            thread.start()
            assert read_exactly(receiver, length) == data
            thread.join()


def test_either_side_may_end_the_session(wired: Cable) -> None:
    host, gadget = wired.sessions()
    host.send([b"last"], soon())
    host.close()
    assert read_exactly(gadget, 4) == b"last"
    assert gadget.recv_into(memoryview(bytearray(9)), soon()) == 0
    with pytest.raises(LinkClosed):
        gadget.send([b"x"], soon())
    host, gadget = wired.sessions()
    gadget.send([b"last"], soon())
    gadget.close()
    assert read_exactly(host, 4) == b"last"
    assert host.recv_into(memoryview(bytearray(9)), soon()) == 0


def test_a_new_session_meets_nothing_of_one_that_died_in_the_middle(wired: Cable) -> None:
    """A killed host says nothing, and leaves bytes in both directions."""
    for _ in range(3):
        host, gadget = wired.sessions()
        gadget.send([os.urandom(1_000_000)], soon())
        host.send([os.urandom(100_000)], soon())
    late = gadget
    host, gadget = wired.sessions()
    assert late.over
    with pytest.raises(LinkClosed):
        late.send([b"for nobody"], soon())
    late.close()
    gadget.send([b"hello"], soon())
    assert read_exactly(host, 5) == b"hello"
    host.send([b"you"], soon())
    assert read_exactly(gadget, 3) == b"you"


def test_a_session_begins_though_the_gadget_waits_to_be_read(wired: Cable) -> None:
    """Both pipes full, the worker's thread stuck in a send: the host reads on its way in."""
    _, gadget = wired.sessions()
    stuck = threading.Thread(target=_send_until_over, args=(gadget,))
    stuck.start()
    time.sleep(0.2)
    host, gadget = wired.sessions()
    stuck.join(DEADLINE_S)
    assert not stuck.is_alive()
    host.send([b"ok"], soon())
    assert read_exactly(gadget, 2) == b"ok"


def _send_until_over(channel: functionfs.GadgetChannel) -> None:
    with contextlib.suppress(LinkClosed):
        while True:
            channel.send([bytes(1_000_000)], soon())


def test_waits_have_deadlines(wired: Cable) -> None:
    host, gadget = wired.sessions()
    for channel in (host, gadget):
        start = time.monotonic()
        with pytest.raises(LinkTimeout):
            channel.recv_into(memoryview(bytearray(9)), time.monotonic() + 0.3)
        assert time.monotonic() - start < 2
    for channel in (host, gadget):
        with pytest.raises(LinkTimeout):
            channel.send([bytes(32_000_000)], time.monotonic() + 0.3)
    with pytest.raises(LinkTimeout):
        wired.door.accept(0.1)


def test_a_gadget_without_a_worker_is_named(wired: Cable) -> None:
    host, _gadget = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises(LinkTimeout, match="start `backburner worker --listen ffs:PATH` on it"):
        BulkChannel(Wire(host), "gadget", 0.5)


def test_a_pulled_cable_ends_both_sides(wired: Cable) -> None:
    host, gadget = wired.sessions()
    wired.pull()
    with pytest.raises(LinkClosed):
        host.recv_into(memoryview(bytearray(9)), soon())
    assert gadget.recv_into(memoryview(bytearray(9)), soon()) == 0


def test_closing_the_door_wakes_who_waits_at_it(wired: Cable) -> None:
    threading.Timer(0.1, wired.door.close).start()
    with pytest.raises(LinkClosed, match="no longer listening at ffs:test"):
        wired.door.accept(DEADLINE_S)


def test_our_frames_cross(wired: Cable) -> None:
    host, gadget = wired.sessions()
    peer = Peer(gadget)
    link = Link(host)
    payload = np.arange(700_000, dtype=np.uint8)

    def answer() -> None:
        from backburner.transport.messages import Pong

        tag, ping = peer.receive(DEADLINE_S)
        peer.reply(tag, Pong(ping.payload))

    thread = threading.Thread(target=answer)
    thread.start()
    assert np.array_equal(link.exchange(Ping(True, payload)).payload, payload)
    thread.join()
    link.close()


def test_a_worker_serves_over_bulk_one_host_after_another(wired: Cable) -> None:
    server = WorkerServer(wired.door, NumpyEngine(), 1 << 20, "gadget", ("numpy",))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for _ in range(3):
        end = soon()
        while True:
            try:
                found = probe(lambda: Link(BulkChannel(wired.wire, "gadget", DEADLINE_S)))
                break
            except WorkerBusy:  # it has not noticed yet that the last host left
                assert time.monotonic() < end
                time.sleep(0.02)
        assert found.name == "gadget"
        assert found.engines == ("numpy",)
        assert found.speed.bytes_per_s > 0
    assert server.address == "ffs:test"
    server.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_descriptors_have_the_lengths_and_counts_that_functionfs_checks() -> None:
    data = functionfs.descriptors()
    magic, length, flags, full, high, superspeed = struct.unpack_from("<IIIIII", data)
    assert (magic, length, flags) == (3, len(data), 7)
    assert (full, high, superspeed) == (3, 3, 5)
    kinds = []
    at = 24
    while at < len(data):
        kinds.append(data[at + 1])
        assert data[at] == {4: 9, 5: 7, 0x30: 6}[data[at + 1]]
        at += data[at]
    assert at == len(data)
    assert kinds == [4, 5, 5, 4, 5, 5, 4, 5, 0x30, 5, 0x30]
    assert data[24:33] == bytes([9, 4, 0, 0, 2, 0xFF, 0x42, 0x01, 1])
    text = functionfs.strings()
    assert struct.unpack_from("<IIIIH", text) == (2, len(text), 1, 1, 0x0409)
    assert text.endswith(b"Backburner\0")


def test_control_requests_are_refused_and_other_events_passed_over() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=functionfs.serve_control, args=(ours.fileno(),))
    thread.start()
    for kind in (0, 2, 4, 3, 1):
        kernel.send(struct.pack("<BBHHHBxxx", 0x41, 1, 0, 0, 0, kind))
    kernel.shutdown(socket.SHUT_WR)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_folder_without_functionfs_is_refused_with_what_to_do(tmp_path) -> None:
    with pytest.raises(ConfigError, match="mount FunctionFS there"):
        functionfs.listen(str(tmp_path))


def test_without_a_gadget_connecting_says_so() -> None:
    with pytest.raises(LinkClosed, match="no gadget of ours is on a USB cable"):
        connect()
    with pytest.raises(LinkClosed, match="the gadget 42 is not on a USB cable"):
        connect("42")


class Gadget:
    """pyusb's object of one whose serial the system does not tell, as on macOS."""

    def __init__(self, serial: str | Exception | None) -> None:
        self._serial = serial

    @property
    def serial_number(self) -> str | None:
        if isinstance(self._serial, Exception):
            raise self._serial
        return self._serial


def test_where_the_system_tells_no_serial_the_gadget_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cable.Plugged("gadget", "Pi", cable.GADGET_VENDOR, cable.GADGET_PRODUCT, 2, 5, (1,), 5e9)
    forbidden = [OSError("access denied"), ValueError("no langid"), None]
    gadgets = [*map(Gadget, forbidden), Gadget("pi-1"), Gadget("pi-2")]
    opened = []

    def claim(raw: Gadget) -> None:
        opened.append(raw)
        raise OSError("that is enough")

    monkeypatch.setattr(cable, "find_raw", lambda: iter(gadgets))
    monkeypatch.setattr(cable, "describe", lambda raw: seen)
    monkeypatch.setattr(bulk, "PyusbEndpoints", claim)
    with pytest.raises(LinkClosed, match="bulk:pi-2 cannot be opened: that is enough"):
        connect("pi-2")
    assert opened == gadgets[-1:]
    with pytest.raises(LinkClosed, match="the gadget pi-3 is not on a USB cable"):
        connect("pi-3")
    with pytest.raises(ConfigError, match="one without a serial at bus 2, pi-1, pi-2"):
        connect()
