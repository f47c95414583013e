"""The cable: what libusb tells without opening anything, what to say about it, and what a slow one costs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backburner.planner import cable as planner
from backburner.planner.seam import Speeds, best_seam, why_not
from backburner.transport import cable
from tests import usb_fixtures as fixtures

ROOT = Path(__file__).parent.parent
LOOK = """
import dataclasses, json
from backburner.transport import cable
opened = []
import usb.backend.libusb1 as backend
backend._LibUSB.open_device = lambda *a: opened.append(a)
found = [dataclasses.asdict(d) for d in cable.find()]
print(json.dumps({"found": found, "opened": len(opened)}))
"""


def look(tmp_path: Path, *devices: str) -> list[dict]:
    """What `find` sees of emulated devices; that it opened none is part of it."""
    if not shutil.which("umockdev-run"):
        pytest.skip("umockdev is not installed (apt install umockdev): no USB devices to emulate")
    arguments = ["umockdev-run"]
    for index, text in enumerate(devices):
        (path := tmp_path / f"{index}.umockdev").write_text(text)
        arguments += ["-d", str(path)]
    done = subprocess.run(
        [*arguments, "--", sys.executable, "-c", LOOK],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["opened"] == 0
    return seen["found"]


@pytest.mark.parametrize(
    ("mbps", "bits_per_s"), [(12, 12e6), (480, 480e6), (5000, 5e9), (10000, 10e9), (20000, 20e9)]
)
def test_the_speed_of_a_phone_is_read_without_opening_it(
    tmp_path: Path, mbps: int, bits_per_s: float
) -> None:
    (found,) = look(tmp_path, fixtures.iphone(mbps))
    assert found["kind"] == "usbmux"
    assert (found["vendor"], found["product"], found["name"]) == (0x05AC, 0x12A8, "iPhone")
    assert (found["bus"], found["address"], found["ports"]) == (2, 5, [1])
    assert found["bits_per_s"] in (bits_per_s, None if mbps == 20000 else bits_per_s)
    assert found["serial"] == "00008150001122334455667A"


def test_only_phones_and_gadgets_of_ours_are_found(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        fixtures.iphone(10000, port=1, product=0x12AB),
        fixtures.device(port=2, vendor=0x05AC, product=0x024F, triple=(3, 1, 1)),  # Apple's keyboard
        fixtures.device(port=3, vendor=0x1209, product=1, triple=cable.GADGET_INTERFACE),
        fixtures.device(port=4, vendor=0x1209, product=1, triple=(255, 0, 0)),  # somebody else's test device
        fixtures.device(port=5, vendor=0x05AC, product=0x1999, triple=cable.USBMUX_INTERFACE),
    )
    assert [(d["kind"], d["ports"]) for d in found] == [("usbmux", [1]), ("gadget", [3]), ("usbmux", [5])]


@pytest.mark.parametrize(
    ("bits_per_s", "name", "warns"),
    [
        (None, "unknown", False),
        (1.5e6, "1.5 Mb/s", True),
        (12e6, "12 Mb/s", True),
        (480e6, "480 Mb/s", True),
        (5e9, "5 Gb/s", False),
        (10e9, "10 Gb/s", False),
        (20e9, "20 Gb/s", False),
    ],
)
def test_a_slow_cable_is_warned_of_by_the_name_of_its_speed(
    bits_per_s: float | None, name: str, warns: bool
) -> None:
    assert cable.speed_name(bits_per_s) == name
    text = cable.warning(bits_per_s)
    assert (text is not None) == warns
    assert text is None or name in text


def test_libusb_code_zero_and_one_nobody_knows_are_unknown() -> None:
    assert cable.SPEEDS.get(0) is None
    assert cable.SPEEDS.get(9) is None


def test_a_slow_cable_costs_what_the_calibrated_cost_model_says() -> None:
    """Table (c) of the cost model: 145 tok/s steady at 32k; reads of 2,048 there 135 on USB 2 and 144 on the others."""
    steady = planner.PAIR.speeds(32_768, 244e6)
    seam = best_seam(steady, planner.CYCLE)
    assert seam == 44  # the table's 40 is 2 % faster; of two so close the larger is taken
    assert planner.UBATCH_TOKENS / planner.step_us(40, steady) * 1e6 == pytest.approx(145, rel=0.01)
    assert planner.longer(2_048, 35e6, 32_768) == pytest.approx(144 / 135 - 1, abs=0.02)
    assert planner.longer(2_048, 122e6, 32_768) < 0.01
    assert planner.longer(16_384, 35e6) < 0.03


def test_what_a_cable_costs_is_said_in_numbers() -> None:
    assert "35 MB/s: a split read of 2,048 tokens takes" in planner.cost_of(480e6)
    assert "no slower" in planner.cost_of(10e9)
    assert "too slow for a split read to pay" in planner.cost_of(12e6)
    assert planner.split_gain(0.9e6) is None


def test_the_seam_says_with_which_numbers_splitting_does_not_pay() -> None:
    slow_link = Speeds(16, 1000.0, 1000.0, 20_000.0)
    assert best_seam(slow_link, 4) is None
    assert why_not(slow_link, 4) == (
        "for one ubatch a layer takes 1.00 ms here and 1.00 ms on the worker, their bytes 20.00 ms on the link; "
        "split at layer 8 of 16, reading would be 0.80 times as fast"
    )
    assert "no seam leaves layers" in why_not(Speeds(4, 1000.0, 1.0, 1.0), 4)
