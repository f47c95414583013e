"""A FunctionFS gadget under a real kernel: an echo and a split read over bulk. Runs inside `make test-usb-vm` only."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backburner.transport import bulk, cable
from backburner.transport import messages as m
from backburner.transport.link import Link

pytestmark = [
    pytest.mark.usb_vm,
    pytest.mark.skipif("USB_VM" not in os.environ, reason="needs a kernel with dummy_hcd: make test-usb-vm"),
]

# An emulated CPU has been some ten times slower than the one it runs on, which may be busy besides.
PATIENCE_S = 300.0

SERIAL = "vm-1"
FOLDER = Path("/run/ffs")
GADGET = Path("/sys/kernel/config/usb_gadget/backburner")


def describe_gadget() -> None:
    """As docs/operations.md says, up to the worker's start."""
    (GADGET / "strings/0x409").mkdir(parents=True)
    (GADGET / "idVendor").write_text("0x1209")
    (GADGET / "idProduct").write_text("0x0001")
    (GADGET / "strings/0x409/serialnumber").write_text(SERIAL)
    (GADGET / "strings/0x409/product").write_text("Backburner worker")
    (GADGET / "configs/c.1").mkdir()
    (GADGET / "functions/ffs.backburner").mkdir()
    (GADGET / "configs/c.1/ffs.backburner").symlink_to(GADGET / "functions/ffs.backburner")
    FOLDER.mkdir()
    # Not from the checkout: mount would take the name for the folder of that name there.
    subprocess.run(["mount", "-t", "functionfs", "backburner", FOLDER], check=True, cwd="/")


@pytest.fixture(scope="module")
def gadget() -> Iterator[None]:
    from tests.processes import Process

    describe_gadget()
    worker = Process(
        ["worker", "--listen", f"ffs:{FOLDER}", "--model", "tiny", "--memory", "256MiB", "--engine", "numpy"]
    )
    try:
        worker.expect("listening on ffs:", PATIENCE_S)
        (controller,) = os.listdir("/sys/class/udc")
        (GADGET / "UDC").write_text(controller)
        end = time.monotonic() + PATIENCE_S
        while not any(one.kind == "gadget" for one in cable.find()):
            assert time.monotonic() < end, "the host does not see the gadget"
            time.sleep(0.2)
        yield
    finally:
        worker.stop()


class Recorded(Link):
    """A link that notes what it was asked to send."""

    def __init__(self) -> None:
        super().__init__(bulk.connect(SERIAL, PATIENCE_S), PATIENCE_S)
        self.posted: list[type[m.Message]] = []

    def post(self, request: m.Message) -> int:
        self.posted.append(type(request))
        return super().post(request)


def test_an_echo_comes_back_whole_and_the_next_session_is_another(gadget: None) -> None:
    from backburner.devices import probe

    for _ in range(2):
        seen = probe(lambda: Link(bulk.connect(SERIAL, PATIENCE_S), PATIENCE_S), PATIENCE_S)
    (plugged,) = (one for one in cable.find() if one.kind == "gadget")
    print(f"\nusb-vm [emulated]: {cable.speed_name(plugged.bits_per_s)}, {seen.speed}")
    link = Recorded()
    try:
        from backburner.devices import GEOMETRY

        link.exchange(m.Hello(m.PROTOCOL_VERSION, "test", "test", bytes(32), GEOMETRY, (0,), "numpy"))
        sent = np.frombuffer(os.urandom(2_621_440), np.uint8)
        begun = time.monotonic()
        assert np.array_equal(link.exchange(m.Ping(True, sent)).payload, sent)
        print(f"usb-vm [emulated]: 2.6 MB there and back in {time.monotonic() - begun:.2f} s")
    finally:
        link.close()


def test_a_split_read_over_bulk_gives_the_tokens_of_the_host_alone(gadget: None) -> None:
    from tests.host import generate, host, long_prompt

    prompt = long_prompt() * 2
    with host(window_tokens=100_000, engine="numpy") as runner:
        begun = time.monotonic()
        expected, _ = generate(runner, prompt, 3)
        alone_s = time.monotonic() - begun
    links: list[Recorded] = []

    def connect() -> Link:
        links.append(Recorded())
        return links[-1]

    with host(connect, window_tokens=100_000, engine="numpy", split_layer=4) as runner:
        begun = time.monotonic()
        found, _ = generate(runner, prompt, 3)
        split_s = time.monotonic() - begun
    assert found == expected
    assert sum(link.posted.count(m.TailChunk) for link in links) >= 2, "the worker ran no layers"
    print(
        f"\nusb-vm [emulated]: {len(prompt)} tokens: alone {alone_s:.1f} s, split over bulk {split_s:.1f} s"
    )
