"""`backburner doctor`: a check passes, fails with a fix, or is skipped; one that breaks is a finding like another."""

import dataclasses
import json
from pathlib import Path

import pytest

from backburner import look
from backburner.cli_reach import reach
from backburner.config import Device
from backburner.devices import Found, Probed, Survey, match
from backburner.doctor import link, machine
from backburner.doctor.check import Check, Patient, examine, passed
from backburner.doctor.checks import CHECKS
from backburner.errors import ConfigError, LinkClosed, Mismatch, WorkerBusy
from backburner.transport.cable import Plugged
from backburner.transport.link import LinkSpeed
from tests.processes import run, worker

NO_DAEMON = {"USBMUXD_SOCKET_ADDRESS": "UNIX:/nonexistent/usbmuxd"}
SERIAL = "00008150-001122334455667A"
PHONE = Found("iPhone", Device("usb", serial=SERIAL), SERIAL, 10e9, True, True)


def patient(device: Found | None = None, **more) -> Patient:
    known = {
        "survey": Survey((device,) if device else (), ()),
        "device": device,
        "named": None,
        "connect": None,
        "spill_folder": None,
        "spill_bytes": 0,
    }
    return Patient(**(known | more))


def phone(**more) -> Found:
    return dataclasses.replace(PHONE, **more)


def probed(bytes_per_s: float, layers: int = 64) -> Probed:
    speed = LinkSpeed(96.0, 183.0, bytes_per_s)
    return Probed("phone", "backburner 0", 1, "numpy", ("numpy",), 2**30, 2**29, 0, layers, speed)


def test_a_check_that_breaks_has_failed_and_the_others_still_run() -> None:
    def explode(_: Patient):
        raise ZeroDivisionError("of course")

    def refuse(_: Patient):
        raise ConfigError("no such thing")

    checks = (Check("a", explode), Check("b", refuse), Check("c", lambda _: passed("fine")))
    findings = list(examine(checks, patient()))
    assert [(f.number, f.result.state) for f in findings] == [(1, "fail"), (2, "fail"), (3, "pass")]
    assert findings[0].result.text == "ZeroDivisionError: of course"
    assert findings[1].result.text == "no such thing"
    assert all(f.result.fix for f in findings[:2])


@pytest.mark.parametrize(
    ("device", "state", "text"),
    [
        (None, "skip", "no device"),
        (phone(), "pass", "10 Gb/s, about 244 MB/s"),
        (phone(bits_per_s=5e9), "pass", "5 Gb/s, about 122 MB/s"),
        (
            phone(bits_per_s=480e6),
            "fail",
            "480 Mb/s, about 35 MB/s: a split read of 2,048 tokens takes 12% longer",
        ),
        (phone(bits_per_s=None), "skip", "unknown"),
        (phone(cabled=False), "skip", "no USB cable"),
    ],
)
def test_the_cable(device: Found | None, state: str, text: str) -> None:
    result = link.cable_speed(patient(device))
    assert result.state == state
    assert text in result.text
    assert bool(result.fix) == (state == "fail")


def test_the_device() -> None:
    assert link.device_seen(patient()).state == "skip"
    assert link.device_seen(patient(named=Device("usb"))).state == "fail"
    assert link.device_seen(patient(PHONE)).text == "iPhone 0000…667A"
    untrusted = link.device_seen(patient(phone(usbmux=False)))
    assert (untrusted.state, untrusted.fix) == ("fail", "unlock it and tap 'Trust' when it asks")


@pytest.mark.parametrize(
    ("error", "states"),
    [
        (LinkClosed("nothing listens"), ["fail", "skip", "skip", "skip"]),
        (Mismatch("speaks protocol 9"), ["pass", "fail", "skip", "skip"]),
        (WorkerBusy("it serves another"), ["pass", "skip", "skip", "skip"]),
    ],
)
def test_why_there_is_no_worker_is_one_finding(error: Exception, states: list[str]) -> None:
    def connect():
        raise error

    findings = list(examine(CHECKS[8:], patient(PHONE, connect=connect)))
    assert [f.result.state for f in findings] == states
    assert all(f.result.fix for f in findings if f.result.state == "fail")


@pytest.mark.parametrize(
    ("worker", "state", "text"),
    [
        (probed(244e6), "pass", "over 244 MB/s a long read is 1.4"),
        (probed(35e6), "pass", "over 35 MB/s a long read is 1.4"),
        (probed(1e6), "fail", "not over 1 MB/s"),
        (probed(244e6, layers=0), "skip", "no model"),
        (None, "skip", "no device"),
    ],
)
def test_whether_split_prefill_pays(worker: Probed | None, state: str, text: str) -> None:
    result = link.split_pays(patient(PHONE, worker=worker))
    assert result.state == state
    assert text in result.text


def test_the_spill_folder(tmp_path: Path) -> None:
    assert machine.spill(patient()).state == "skip"
    there = machine.spill(patient(spill_folder=tmp_path / "not" / "yet"))
    assert there.state == "pass"
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"
    assert machine.spill(patient(spill_folder=tmp_path, spill_bytes=2**70)).state == "fail"
    (file := tmp_path / "file").touch()
    blocked = machine.spill(patient(spill_folder=file / "below"))
    assert (blocked.state, "--spill-dir" in blocked.fix) == ("fail", True)


def test_with_nothing_attached_only_the_machine_is_examined() -> None:
    done = run("doctor", "--json", "--spill-size", "1MiB", **NO_DAEMON)
    assert "Traceback" not in done.stderr
    findings = json.loads(done.stdout)
    assert [f["number"] for f in findings] == list(range(1, len(CHECKS) + 1))
    states = {f["title"]: f["result"]["state"] for f in findings}
    assert states["Python"] == states["memory"] == states["spill folder"] == "pass"
    assert {states[c.title] for c in CHECKS[6:]} == {"skip"}
    assert done.returncode == ("fail" in states.values())


def test_a_worker_that_is_not_there_is_status_1_with_the_fix() -> None:
    done = run("doctor", "--device", "tcp://127.0.0.1:1", "--spill-dir", "none", **NO_DAEMON)
    assert done.returncode == 1
    assert " 9 fail  worker: nothing listens at 127.0.0.1:1" in done.stdout
    assert "-> start the worker there" in done.stdout
    assert "1 of 12 checks failed" in done.stdout


def test_a_worker_that_is_there_is_measured() -> None:
    with worker(0, "--memory", "64MiB") as (_, port):
        done = run("doctor", "--device", f"tcp://127.0.0.1:{port}", "--spill-dir", "none", **NO_DAEMON)
    assert done.returncode == 0, done.stdout
    assert "10 pass  protocol: 1 on both sides" in done.stdout
    assert "11 pass  round trip and bandwidth: round trip " in done.stdout
    assert "12 skip  split prefill pays: the worker has no model" in done.stdout


def test_a_phone_that_was_named_and_is_not_there() -> None:
    done = run("doctor", "--device", "usb", "--spill-dir", "none", **NO_DAEMON)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert " 7 fail  device: it is not there" in done.stdout


def test_a_gadget_that_was_named_and_is_not_there_has_nothing_to_do_with_usbmuxd() -> None:
    done = run("doctor", "--device", "bulk", "--spill-dir", "none", **NO_DAEMON)
    assert done.returncode == 1
    assert " 6 skip  usbmuxd: bulk does not need it" in done.stdout
    assert " 7 fail  device: it is not there" in done.stdout


@pytest.mark.parametrize(
    "named", [Device("usb"), Device("usb", serial=SERIAL)], ids=["the only one", "by its serial"]
)
@pytest.mark.parametrize("told", [True, False], ids=["Linux", "macOS"])
def test_a_phone_that_is_plugged_in_but_not_trusted_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: Device, told: bool
) -> None:
    """libusb tells its serial without the hyphen, on macOS not at all."""
    serial = SERIAL.replace("-", "") if told else None
    plugged = Plugged("usbmux", "iPhone", 0x05AC, 0x12A8, 2, 5, (1,), 10e9, serial)
    monkeypatch.setattr(look.d, "survey", lambda: Survey(tuple(match([plugged], [])), ()))
    look.show_examination(named, "none", 0, True, reach)
    results = {one["title"]: one["result"] for one in json.loads(capsys.readouterr().out)}
    assert results["device"]["state"] == "fail"
    assert "is on USB, but usbmuxd does not show it" in results["device"]["text"]
    assert results["worker"]["state"] == "skip"
