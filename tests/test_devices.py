"""What `--device` takes: places, and the shape of the link to them, there and back as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.config import Device, LinkShape, parse_address, parse_bytes, parse_device
from backburner.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("none", Device("none")),
        ("loopback", Device("loopback")),
        ("tcp://127.0.0.1:50070", Device("tcp", "127.0.0.1", 50070)),
        ("tcp://[::1]:50070", Device("tcp", "::1", 50070)),
        ("usb", Device("usb")),
        ("usb:00008150-000A11223344001C", Device("usb", serial="00008150-000A11223344001C")),
        ("usb?rtt=2ms", Device("usb", shape=LinkShape(None, 0.002))),
        ("usb:A1?bandwidth=480Mbps", Device("usb", shape=LinkShape(60e6, 0.0), serial="A1")),
        ("bulk:Pi 2/B [attic]", Device("bulk", serial="Pi 2/B [attic]")),
        ("bulk:pi-2?rtt=2ms", Device("bulk", shape=LinkShape(None, 0.002), serial="pi-2")),
        ("loopback?rtt=2ms", Device("loopback", shape=LinkShape(None, 0.002))),
        ("loopback?bandwidth=10Gbps", Device("loopback", shape=LinkShape(1.25e9, 0.0))),
        ("loopback?bandwidth=480Mbps&rtt=2ms", Device("loopback", shape=LinkShape(60e6, 0.002))),
        ("tcp://[::1]:5?bandwidth=9.5kbps&rtt=1.5s", Device("tcp", "::1", 5, LinkShape(1187.5, 1.5))),
    ],
)
def test_a_device_is_read_and_written_the_same(text: str, device: Device) -> None:
    assert parse_device(text) == device
    assert str(device) == text


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("8bps", 1.0),
        ("8kbps", 1e3),
        ("8Mbps", 1e6),
        ("8Gbps", 1e9),
        ("1B/s", 1.0),
        ("1kB/s", 1e3),
        ("0.5MB/s", 5e5),
        ("1GB/s", 1e9),
    ],
)
def test_bits_and_bytes_are_decimal(text: str, bytes_per_s: float) -> None:
    assert parse_device(f"loopback?bandwidth={text}").shape == LinkShape(bytes_per_s, 0.0)


def test_keys_may_come_in_any_order_and_a_slash_may_end_the_address() -> None:
    device = parse_device("tcp://127.0.0.1:5/?rtt=50us&bandwidth=1GB/s")
    assert device == Device("tcp", "127.0.0.1", 5, LinkShape(1e9, 50e-6))
    assert str(device) == "tcp://127.0.0.1:5?bandwidth=8Gbps&rtt=50us"


positive = st.floats(min_value=1e-9, max_value=1e15)


@given(st.none() | positive, positive)
def test_any_shape_survives_being_written(bandwidth: float | None, rtt_s: float) -> None:
    device = Device("loopback", shape=LinkShape(bandwidth, rtt_s))
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "write for example \\?bandwidth=480Mbps&rtt=2ms"),
        ("speed=5", "'speed=5' is not something to say about a link"),
        ("rtt=1ms&", "'' is not something to say"),
        ("rtt=1ms&rtt=2ms", "rtt is given twice"),
        ("rtt", "rtt= is not a number above zero and one of the units s, ms, us"),
        ("rtt=5", "rtt=5 is not a number"),
        ("rtt=ms", "rtt=ms is not a number"),
        ("rtt=0ms", "rtt=0ms is not a number above zero"),
        ("rtt=-1ms", "rtt=-1ms is not a number above zero"),
        ("rtt=nans", "rtt=nans is not a number"),
        ("rtt=1min", "one of the units s, ms, us; write for example rtt=2ms"),
        ("bandwidth=1e999Gbps", "is not a number above zero"),
        ("bandwidth=480Mb", "units Gbps, Mbps, kbps, bps, GB/s, MB/s, kB/s, B/s"),
        ("bandwidth=480mbps", "write for example bandwidth=480Mbps"),
    ],
)
def test_a_bad_shape_says_what_is_accepted(query: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_device(f"loopback?{query}")


@pytest.mark.parametrize(
    "text", ["usb:", "usb:-A1", "usb:A1-", "usb:A 1", "usb:A1/", "usb:\u0661", "usb:A--1"]
)
def test_what_no_phone_is_called_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a phone's serial; write for example usb:"):
        parse_device(text)


@pytest.mark.parametrize("text", ["bulk:", "bulk:a\x1b[2J", "bulk:a\n", "bulk:" + "a" * 65])
def test_what_cannot_be_shown_is_no_gadgets_serial(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a gadget's serial; write for example bulk:pi-2"):
        parse_device(text)


@pytest.mark.parametrize("port", ["\u00b2", "\u0661", "70000", "9" * 5000, "-1", "+1", "1_0", ""])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("text", "count"), [("2GiB", 2**31), ("1.5 kB", 1536), ("512m", 2**29), ("1000", 1000)]
)
def test_memory_is_counted_in_1024s(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["9" * 400, "8388608T", "\u00b2", "1e3", "-1", ""])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an amount of memory"):
        parse_bytes(text)


def test_no_worker_has_no_link_to_shape() -> None:
    with pytest.raises(ConfigError, match="is not one of none, loopback"):
        parse_device("none?rtt=1ms")
