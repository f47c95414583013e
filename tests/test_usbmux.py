"""The usbmuxd client, against a daemon that a test plays: what is asked, what is made of the answers, and every end."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.errors import ConfigError, LinkClosed, LinkTimeout, ProtocolError, TransportError
from backburner.transport import usbmux
from backburner.transport.usbmux import Listener, Phone, choose, connect, daemon_address, list_devices
from backburner.transport.usbmux_packets import (
    BODY_MAX,
    HEADER,
    Attached,
    Detached,
    UsbDevice,
    pack_connect,
    read_devices,
    read_event,
    read_result,
    unpack_body,
    unpack_header,
)
from tests.processes import until
from tests.usbmux_daemon import OTHER, PHONE, SERIAL, Daemon, entry, packet, result, usbmux_daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with usbmux_daemon() as made:
        yield made


# Packets


def test_the_port_goes_in_network_order_inside_a_little_endian_integer() -> None:
    request = pack_connect(3, 2345, 7)
    length, tag = unpack_header(request[:16])
    message = unpack_body(request[16:])
    assert (length, tag) == (len(request) - 16, 7)
    assert message["PortNumber"] == socket.htons(2345) == 10505
    assert (message["MessageType"], message["DeviceID"], message["kLibUSBMuxVersion"]) == ("Connect", 3, 3)


@pytest.mark.parametrize(
    "header",
    [
        (15, 1, 8, 1),
        (0, 1, 8, 1),
        (17 + BODY_MAX, 1, 8, 1),
        (2**32 - 1, 1, 8, 1),
        (20, 0, 8, 1),
        (20, 1, 1, 1),
    ],
)
def test_a_header_of_another_protocol_or_a_huge_one_is_refused(header: tuple[int, int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="is USBMUXD_SOCKET_ADDRESS right"):
        unpack_header(HEADER.pack(*header))


def test_devices_on_wifi_are_not_listed() -> None:
    devices = read_devices({"DeviceList": [entry(1, connection="Network"), entry(2)]})
    assert devices == [UsbDevice(2, SERIAL, 0x12A8)]
    assert read_event(entry(connection="Network")) is None


def test_an_event_is_read_and_what_newer_daemons_say_is_passed_over() -> None:
    assert read_event(entry()) == Attached(PHONE)
    assert read_event({"MessageType": "Detached", "DeviceID": 3}) == Detached(3)
    assert read_event({"MessageType": "Paired", "DeviceID": 3}) is None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_are_anything_but_a_message_or_an_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(unpack_body(body), dict)


def messages_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = [
        "MessageType",
        "DeviceList",
        "DeviceID",
        "Properties",
        "SerialNumber",
        "ConnectionType",
        "Number",
    ]
    kinds = st.sampled_from(["Attached", "Detached", "Result", "USB"])
    return st.dictionaries(st.sampled_from(names), inner | kinds, max_size=5)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | messages_of(inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(messages_of(values))
def test_no_message_is_anything_but_understood_or_refused(message: dict[str, Any]) -> None:
    for read in (read_devices, read_event, read_result):
        with contextlib.suppress(ProtocolError):
            read(message)  # type: ignore[operator]


@settings(deadline=None)
@given(st.data())
def test_a_damaged_packet_is_understood_or_refused(data: st.DataObject) -> None:
    whole = bytearray(packet({"DeviceList": [entry()]}, 1))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack_header(bytes(whole[:16]))
        read_devices(unpack_body(bytes(whole[16:])))
    except ProtocolError:
        pass


# Where the daemon is


@pytest.mark.parametrize(
    ("environment", "platform", "address"),
    [
        ({}, "linux", "/var/run/usbmuxd"),
        ({}, "darwin", "/var/run/usbmuxd"),
        ({}, "win32", ("127.0.0.1", 27015)),
        ({"USBMUXD_SOCKET_ADDRESS": "UNIX:/tmp/a b"}, "linux", "/tmp/a b"),
        ({"USBMUXD_SOCKET_ADDRESS": "127.0.0.1:5"}, "darwin", ("127.0.0.1", 5)),
        ({"USBMUXD_SOCKET_ADDRESS": "[::1]:5"}, "win32", ("::1", 5)),
        ({"USBMUXD_SOCKET_ADDRESS": ""}, "linux", "/var/run/usbmuxd"),
    ],
)
def test_the_daemon_is_where_its_system_and_the_user_say(
    environment: dict[str, str], platform: str, address: object
) -> None:
    assert daemon_address(environment, platform) == address


@pytest.mark.parametrize("given", ["UNIX:", "/var/run/usbmuxd", "localhost", "192.0.2.1:27015", "x:y"])
def test_an_address_that_names_no_place_here_is_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        daemon_address({"USBMUXD_SOCKET_ADDRESS": given})


def test_a_daemon_that_does_not_run_is_named_with_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(LinkClosed, match=r"usbmuxd does not run at .*/none"):
        list_devices(address=str(tmp_path / "none"))
    with pytest.raises(LinkClosed, match="usbmuxd does not run at"):
        list_devices(address="/tmp/" + "long" * 100)


@pytest.mark.parametrize(
    ("platform", "says"), [("linux", "apt install"), ("darwin", "part of macOS"), ("win32", "Apple Devices")]
)
def test_how_to_get_the_daemon_depends_on_the_system(platform: str, says: str) -> None:
    assert says in usbmux._start_hint(platform)


# Listing and connecting


def test_the_phones_on_cables_are_listed(daemon: Daemon) -> None:
    daemon.devices = [entry(), entry(4, OTHER), entry(5, connection="Network")]
    assert list_devices(address=daemon.address) == [PHONE, UsbDevice(4, OTHER, 0x12A8)]
    assert daemon.asked[0]["ProgName"] == "backburner"


def test_a_connection_is_a_channel_and_no_byte_of_it_is_lost(daemon: Daemon) -> None:
    def answer(sock: socket.socket, message: dict[str, Any]) -> None:
        sock.sendall(result(0) + b"hello")  # the phone's first bytes right behind the answer
        sock.sendall(sock.recv(5))

    daemon.answer = answer
    channel = connect(PHONE, 50_060, address=daemon.address)
    assert channel.peer == f"usb:{SERIAL}"
    space = memoryview(bytearray(64))
    assert bytes(space[: channel.recv_into(space, time.monotonic() + 5)]) == b"hello"
    channel.send([b"ab", b"cde"], time.monotonic() + 5)
    assert bytes(space[: channel.recv_into(space, time.monotonic() + 5)]) == b"abcde"
    channel.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (1, "update it"),
        (2, "plug it in again and unlock it"),
        (3, "nothing listens on port 50060 .* open Backburner on it"),
        (4, "tap 'Trust'"),
        (6, "update it"),
        (77, "code 77.*trust this computer"),
    ],
)
def test_each_refusal_says_what_to_do(daemon: Daemon, code: int, says: str) -> None:
    daemon.code = code
    with pytest.raises(LinkClosed, match=says):
        connect(PHONE, 50_060, address=daemon.address)


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_what_is_no_port_is_not_asked_for(daemon: Daemon, port: int) -> None:
    with pytest.raises(ConfigError):
        connect(PHONE, port, address=daemon.address)
    assert not daemon.asked


def drip(sock: socket.socket, message: dict[str, Any]) -> None:
    for byte in result(0):
        sock.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.mark.parametrize(
    "answer", [lambda sock, message: time.sleep(5), drip], ids=["silent", "a drop at a time"]
)
def test_a_daemon_that_does_not_answer_in_time_is_given_up(
    daemon: Daemon, answer: Callable[[socket.socket, dict[str, Any]], None]
) -> None:
    daemon.answer = answer
    begun = time.monotonic()
    with pytest.raises(LinkTimeout, match="does not answer"):
        connect(PHONE, 50_060, timeout_s=0.3, address=daemon.address)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        (b"", LinkClosed, "hung up"),
        (result(0)[:20], LinkClosed, "hung up"),
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolError, "no message of its protocol"),
        (HEADER.pack(2**31, 1, 8, 1), ProtocolError, "no message of its protocol"),
        (HEADER.pack(20, 1, 8, 1) + b"what", ProtocolError, "cannot be read"),
        (HEADER.pack(16, 1, 8, 1), ProtocolError, "cannot be read"),
        (result(0, tag=9), ProtocolError, "answered request 9"),
        (packet({"MessageType": "Result", "Number": "0"}, 1), ProtocolError, "instead of Result"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_its_reason(
    daemon: Daemon, said: bytes, error: type[TransportError], says: str
) -> None:
    def answer(sock: socket.socket, message: dict[str, Any]) -> None:
        sock.sendall(said)
        sock.close()

    daemon.answer = answer
    with pytest.raises(error, match=says):
        connect(PHONE, 50_060, address=daemon.address)


# Which phone


def test_the_only_phone_is_the_one_and_a_serial_may_be_written_either_way() -> None:
    other = UsbDevice(4, OTHER)
    assert choose([PHONE]) == PHONE
    for serial in (SERIAL, SERIAL.replace("-", ""), SERIAL.lower()):
        assert choose([other, PHONE], serial) == PHONE
    assert choose([other, PHONE], last=SERIAL) == PHONE, "the one that was used"


def test_of_several_phones_one_must_be_named_and_all_are() -> None:
    with pytest.raises(ConfigError, match=f"{OTHER}, {SERIAL}. Say which: --device usb:"):
        choose([PHONE, UsbDevice(4, OTHER)])


def test_a_phone_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(LinkClosed, match="plug it in, unlock it and tap 'Trust'"):
        choose([])
    with pytest.raises(LinkClosed, match=f"{OTHER} is not on a cable: there is {SERIAL}"):
        choose([PHONE], OTHER)


# Listening


def test_a_listener_tells_what_is_there_comes_and_goes(daemon: Daemon) -> None:
    with Listener(address=daemon.address) as listener:
        assert listener.next(5) == Attached(PHONE)
        assert listener.next(0.05) is None
        daemon.attach(entry(4, OTHER, "Network"))
        daemon.tell({"MessageType": "Detached", "DeviceID": 3})
        assert listener.next(5) == Detached(3)
        daemon.shut()
        with pytest.raises(LinkClosed, match="hung up"):
            listener.next(5)


def test_closing_a_listener_wakes_who_waits(daemon: Daemon) -> None:
    daemon.devices = []
    with Listener(address=daemon.address) as listener:
        threading.Timer(0.1, listener.close).start()
        with pytest.raises(LinkClosed):
            listener.next()


def test_an_event_that_begins_has_to_end(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usbmux, "TIMEOUT_S", 0.2)
    daemon.answer = lambda sock, message: sock.sendall(result(0) + packet(entry(), 0)[:30])
    with Listener(address=daemon.address) as listener, pytest.raises(LinkTimeout):
        listener.next()


def test_a_daemon_that_refuses_to_tell_is_an_error(daemon: Daemon) -> None:
    daemon.answer = lambda sock, message: sock.sendall(result(1))
    with pytest.raises(LinkClosed, match="refused to tell of phones"):
        Listener(address=daemon.address)


def test_a_watch_outlives_the_daemon(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usbmux, "DAEMON_RETRY_S", 0.02)
    daemon.devices = []
    seen = threading.Semaphore(0)
    unwatch = Phone(None, 5, daemon.address).watch(lambda: seen.release())
    until(lambda: daemon.listeners == 1)
    daemon.tell(entry())
    assert seen.acquire(timeout=5)
    daemon.shut()
    time.sleep(0.1)
    daemon.open()
    until(lambda: daemon.listeners == 1)
    daemon.tell(entry())
    assert seen.acquire(timeout=5)
    unwatch()
    assert not any(thread.name == "usbmux" for thread in threading.enumerate())
