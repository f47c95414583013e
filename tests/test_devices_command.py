"""`backburner devices`: one list of what libusb and usbmuxd see, what workers say, and never a traceback."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backburner import devices as d
from backburner import look
from backburner.config import WORKER_PORT, Device, parse_device
from backburner.errors import LinkClosed
from backburner.transport.cable import Plugged
from backburner.transport.usbmux_packets import UsbDevice
from tests import usb_fixtures as fixtures
from tests.processes import ROOT, environment, run, until, worker
from tests.usb_stack import missing, usb_stack

NO_DAEMON = {"USBMUXD_SOCKET_ADDRESS": "UNIX:/nonexistent/usbmuxd"}
SERIAL = "00008150-001122334455667A"


def plugged(**more) -> Plugged:
    return dataclasses.replace(
        Plugged("usbmux", "iPhone", 0x05AC, 0x12A8, 2, 5, (1,), 10e9, SERIAL.replace("-", "")), **more
    )


def test_a_phone_is_one_device_for_both_and_has_the_speed_that_libusb_says() -> None:
    (found,) = d.match([plugged()], [UsbDevice(3, SERIAL, 0x12A8)])
    assert (str(found.device), found.serial, found.bits_per_s, found.usbmux) == (
        f"usb:{SERIAL}",
        SERIAL,
        10e9,
        True,
    )
    assert parse_device(str(found.device)) == found.device


def test_two_phones_are_told_apart_by_their_serials() -> None:
    other = "00008140-000B55667788002D"
    found = d.match(
        [plugged(serial=other.replace("-", ""), bits_per_s=480e6), plugged()],
        [UsbDevice(1, SERIAL), UsbDevice(2, other)],
    )
    assert {one.serial: one.bits_per_s for one in found} == {SERIAL: 10e9, other: 480e6}


def test_without_serials_two_phones_of_one_kind_have_unknown_speeds_rather_than_swapped_ones() -> None:
    """On macOS libusb tells no serial without opening the device."""
    two = [plugged(serial=None), plugged(serial=None, address=6, bits_per_s=480e6)]
    found = d.match(two, [UsbDevice(1, SERIAL, 0x12A8), UsbDevice(2, "X", 0x12A8)])
    assert [one.bits_per_s for one in found if one.usbmux] == [None, None]
    (one,) = d.match([plugged(serial=None)], [UsbDevice(1, SERIAL)])
    assert one.bits_per_s == 10e9
    first, second = d.match(
        [plugged(serial=None), plugged(serial=None, product=0x12AB, bits_per_s=5e9)],
        [UsbDevice(1, "A", 0x12AB), UsbDevice(2, "B", 0x12A8)],
    )
    assert (first.bits_per_s, second.bits_per_s) == (5e9, 10e9)


def test_a_phone_that_usbmuxd_does_not_show_is_listed_with_what_to_do() -> None:
    (found,) = d.match([plugged()], [])
    assert found.usbmux is False
    assert "tap 'Trust'" in found.error


def test_a_gadget_needs_no_usbmuxd() -> None:
    (found,) = d.match([plugged(kind="gadget", name="Pi", serial="pi-2")], [])
    assert (str(found.device), found.usbmux, found.error) == ("bulk:pi-2", None, None)


@pytest.mark.parametrize("serial", ["Pi 2/B (attic)", "what?", "[red]", "\u00fc"])
def test_a_gadget_with_an_unusual_serial_is_an_entry_like_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], serial: str
) -> None:
    """Whatever a person has written into configfs."""
    seen = d.Survey(tuple(d.match([plugged(kind="gadget", name="Pi", serial=serial)], [])), ())
    monkeypatch.setattr(look.d, "survey", lambda: seen)
    asked = []

    @contextlib.contextmanager
    def reach(device: Device):
        asked.append(device)
        raise LinkClosed("nobody answers")
        yield

    look.show_devices([], False, reach)
    assert "nobody answers" in capsys.readouterr().out
    look.show_examination(None, "none", 0, True, reach)
    assert "nobody answers" in capsys.readouterr().out
    assert asked == [Device("bulk", serial=serial)] * 2


def test_serials_are_shortened() -> None:
    assert d.shorten(SERIAL) == "0000…667A"
    assert d.shorten("short") == "short"
    assert d.shorten(None) == "-"


def test_a_worker_that_cannot_be_reached_is_an_entry_not_an_end() -> None:
    def refuse():
        raise LinkClosed("nothing listens there")

    found = d.with_worker(d.at(Device("tcp", "127.0.0.1", 1)), refuse)
    assert found.worker is None
    assert found.error == "nothing listens there"


def test_with_nothing_attached_it_says_so() -> None:
    done = run("devices", **NO_DAEMON)
    assert done.returncode == 0, done.stderr
    assert "nothing is plugged in" in done.stdout
    assert "usbmuxd does not run at /nonexistent/usbmuxd" in done.stdout
    assert done.stderr == ""


def test_a_worker_on_the_network_is_shown_with_its_figures_and_can_be_used_afterwards() -> None:
    with worker(0, "--memory", "64MiB") as (_, port):
        for _ in range(2):
            done = run("devices", "--json", "--device", f"tcp://127.0.0.1:{port}", **NO_DAEMON)
            assert done.returncode == 0, done.stderr
            (one,) = json.loads(done.stdout)["devices"]
            assert one["error"] is None
            said = one["worker"]
            assert (said["name"], said["memory_bytes"], said["layers"]) == ("tested", 64 << 20, 0)
            assert said["engines"]
            assert said["speed"]["rtt_us"] > 0
            assert said["speed"]["bytes_per_s"] > 0
            assert one["link_speed"] is None
        table = run("devices", "--device", f"tcp://127.0.0.1:{port}", **NO_DAEMON).stdout
    assert "tested, backburner" in table
    assert "MB/s" in table


def test_what_is_wrong_with_one_address_is_said_beside_the_others() -> None:
    done = run("devices", "--device", "tcp://127.0.0.1:1", **NO_DAEMON)
    assert done.returncode == 0, done.stderr
    assert "nothing listens at 127.0.0.1:1" in done.stdout
    bad = run("devices", "--device", "floppy", **NO_DAEMON)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_a_phone_on_a_slow_cable_is_warned_of(tmp_path: Path) -> None:
    if not shutil.which("umockdev-run"):
        pytest.skip("umockdev is not installed (apt install umockdev): no USB devices to emulate")
    (path := tmp_path / "phone.umockdev").write_text(fixtures.iphone(480))
    done = subprocess.run(
        ["umockdev-run", "-d", str(path), "--", sys.executable, "-m", "backburner", "devices", "--json"],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(**NO_DAEMON),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["devices"]
    assert (one["name"], one["serial"], one["link_speed"]) == ("iPhone", "0000…667A", "480 Mb/s")
    assert "480 Mb/s" in one["warning"]
    assert one["usbmux"] is False


def test_a_worker_on_a_phone_is_found_through_a_real_usbmuxd() -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    with usb_stack() as usb, worker(0, "--memory", "64MiB") as (_, port):
        usb.plug()
        usb.listen(WORKER_PORT, port)
        found = until(lambda: json.loads(run("devices", "--json", **usb.environment).stdout)["devices"])
        usb.clear()
    (one,) = found
    assert (one["serial"], one["usbmux"], one["link_speed"]) == ("0000…001C", True, "unknown")
    assert one["error"] is None
    assert one["worker"]["name"] == "tested"
    assert one["worker"]["speed"]["bytes_per_s"] > 0
