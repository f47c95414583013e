"""The whole USB path without hardware: our client, a real usbmuxd and libusb, and a phone that carries our worker."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from backburner import config as c
from backburner.engine import worker_link
from backburner.engine.runner import ModelRunner
from backburner.engine.sequence import Sequence as SequenceState
from backburner.errors import ConfigError, LinkClosed
from backburner.transport import link as link_module
from backburner.transport import usbmux
from backburner.transport.link import Link
from backburner.transport.usbmux import Listener, Phone, UsbDevice, connect, list_devices
from backburner.transport.usbmux_packets import Attached, Detached
from tests.cable import Cable, Fault
from tests.host import generate, generate_with_state, host, port_of, serving
from tests.processes import Server, ask, until
from tests.survival import MODEL, MOMENTS, PROMPT, TOKENS, WINDOW, answer
from tests.usb_stack import OTHER_PHONE, OTHER_SERIAL, PHONE, SERIAL, UsbStack, missing, usb_stack

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no USB stack: {WHY_NOT}")

# The emulated bus takes milliseconds a packet, and a busy machine many more.
TIMEOUT_S = 20.0
DEADLINE_S = 15.0


@pytest.fixture
def bus() -> Iterator[UsbStack]:
    """With a daemon of its own, which starts in 0.1 s: one that hangs fails one test."""
    with usb_stack() as stack:
        yield stack


@pytest.fixture
def stack(bus: UsbStack) -> Iterator[UsbStack]:
    """With the one phone plugged in."""
    bus.plug()
    await_serials(bus, [SERIAL])
    yield bus
    bus.clear()
    await_serials(bus, [])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    # A measurement of 69 round trips would take seconds here, and say nothing about a phone.
    monkeypatch.setattr(link_module, "PROBE_PINGS", 2)
    monkeypatch.setattr(link_module, "BULK_PINGS", 1)
    monkeypatch.setattr(worker_link, "RETRY_GREETING_S", 10.0)


def serials(stack: UsbStack) -> list[str]:
    return sorted(device.serial for device in list_devices(DEADLINE_S, stack.socket))


def await_serials(stack: UsbStack, wanted: list[str]) -> None:
    try:
        until(lambda: serials(stack) == wanted, DEADLINE_S)
    except AssertionError:
        pytest.fail(f"usbmuxd does not list {wanted}:\n{stack.output[-3000:]}")


def the_phone(stack: UsbStack) -> UsbDevice:
    (device,) = list_devices(DEADLINE_S, stack.socket)
    return device


@pytest.fixture
def echo(stack: UsbStack) -> Iterator[None]:
    """An app on the phone that says everything back, at our port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        stack.listen(c.WORKER_PORT, server.getsockname()[1])
        yield
        stack.refuse(c.WORKER_PORT)


def _echo(server: socket.socket) -> None:
    try:
        while True:
            sock, _ = server.accept()
            with sock:
                while data := sock.recv(65536):
                    sock.sendall(data)
    except OSError:
        pass


def received(channel: usbmux.SocketChannel, count: int) -> bytes:
    got, space = bytearray(), memoryview(bytearray(65536))
    while len(got) < count and (read := channel.recv_into(space, time.monotonic() + DEADLINE_S)):
        got += space[:read]
    return bytes(got)


def test_bytes_cross_the_whole_stack_unchanged(stack: UsbStack, echo: None) -> None:
    channel = connect(the_phone(stack), c.WORKER_PORT, DEADLINE_S, stack.socket)
    data = np.random.default_rng(1).bytes(300_000)
    sender = threading.Thread(target=lambda: channel.send([data], time.monotonic() + DEADLINE_S))
    sender.start()
    assert received(channel, len(data)) == data
    sender.join()
    channel.close()


def test_a_reply_of_many_windows_needs_nothing_from_the_host_meanwhile(stack: UsbStack) -> None:
    """The daemon acknowledges what it has passed on when its poll times out, and only then if we say nothing."""
    data = np.random.default_rng(2).bytes(1_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stack.listen(c.WORKER_PORT, server.getsockname()[1])
        channel = connect(the_phone(stack), c.WORKER_PORT, DEADLINE_S, stack.socket)
        app, _ = server.accept()
        with app:
            sender = threading.Thread(target=app.sendall, args=(data,))
            sender.start()
            assert received(channel, len(data)) == data
            sender.join()
        channel.close()


def test_a_port_where_nothing_listens_is_refused_with_what_to_do(stack: UsbStack) -> None:
    with pytest.raises(LinkClosed, match="open Backburner on it"):
        connect(the_phone(stack), 50_061, DEADLINE_S, stack.socket)


def test_a_phone_that_is_pulled_ends_its_streams_and_is_said_to_be_gone(stack: UsbStack, echo: None) -> None:
    device = the_phone(stack)
    channel = connect(device, c.WORKER_PORT, DEADLINE_S, stack.socket)
    with Listener(DEADLINE_S, stack.socket) as listener:
        assert listener.next(DEADLINE_S) == Attached(device)
        stack.unplug()
        assert listener.next(DEADLINE_S) == Detached(device.device_id)
        assert received(channel, 1) == b"", "the end of the stream"
        with pytest.raises(LinkClosed, match="not on the cable any more"):
            connect(device, c.WORKER_PORT, DEADLINE_S, stack.socket)
        stack.plug()
        again = listener.next(DEADLINE_S)
        assert isinstance(again, Attached)
        assert again.device.serial == SERIAL


def test_of_two_phones_one_must_be_named(stack: UsbStack, echo: None) -> None:
    stack.plug(OTHER_PHONE, 2)
    await_serials(stack, sorted([SERIAL, OTHER_SERIAL]))
    with pytest.raises(ConfigError, match=f"{OTHER_SERIAL}, {SERIAL}. Say which"):
        Phone(None, c.WORKER_PORT, stack.socket).connect()
    for spelling in (SERIAL, PHONE, PHONE.lower()):
        channel = Phone(spelling, c.WORKER_PORT, stack.socket).connect()
        assert channel.peer == f"usb:{SERIAL}"
        channel.close()
    with pytest.raises(
        LinkClosed, match=f"nothing listens on port {c.WORKER_PORT} of the phone {OTHER_SERIAL}"
    ):
        Phone(OTHER_SERIAL, c.WORKER_PORT, stack.socket).connect()


def test_a_wrong_serial_is_said_with_the_right_ones(stack: UsbStack) -> None:
    with pytest.raises(LinkClosed, match=f"{OTHER_SERIAL} is not on a cable: there is {SERIAL}"):
        Phone(OTHER_SERIAL, c.WORKER_PORT, stack.socket).connect()


def test_other_clients_of_the_same_daemon_see_the_same(stack: UsbStack, echo: None) -> None:
    """idevice_id and iproxy, which are not ours, agree with us on the phone, its serial and its port."""
    environment = os.environ | stack.environment
    listed = subprocess.run(["idevice_id", "-l"], env=environment, capture_output=True, text=True, timeout=60)
    assert re.sub(r" \(USB\)", "", listed.stdout).split() == [SERIAL]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        ["iproxy", f"{port}:{c.WORKER_PORT}"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as proxy:
        try:
            until(lambda: _says_back(port), DEADLINE_S, "iproxy does not reach the phone")
        finally:
            proxy.send_signal(signal.SIGKILL)


def _says_back(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
            sock.sendall(b"ping")
            return sock.recv(4, socket.MSG_WAITALL) == b"ping"
    except OSError:
        return False


@pytest.mark.parametrize("moment", ["idle", "middle", "rows streaming", "decode"])
def test_a_reply_survives_the_pulled_cable_and_the_phone_is_taken_back(
    stack: UsbStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # It is back by the event that it was plugged in, or not within this test.
    monkeypatch.setattr(worker_link, "RETRY_FIRST_S", 600.0)
    with serving(model=MODEL) as server:
        at = MOMENTS.get(moment)
        fault = None if at is None else Fault("act", at.direction, at.at, frame=(at.kind, at.number))
        cable = Cable(port_of(server), fault, stack.unplug)
        stack.listen(c.WORKER_PORT, cable.port)
        phone = Phone(None, c.WORKER_PORT, stack.socket)
        if at is not None and at.after_tokens:
            cable.armed.clear()
        with host(
            lambda: Link(phone.connect(), TIMEOUT_S),
            split_layer=2 if moment == "rows streaming" else 4,
            window_tokens=WINDOW,
            spill_folder=tmp_path,
            watch=phone.watch,
        ) as runner:
            cable.heal()
            if at is None:
                assert same(runner)
                stack.unplug()
            assert same(runner, cable, 0 if at is None else at.after_tokens)
            assert at is None or cable.hit_s is not None, "the phone was pulled"
            (worker,) = runner.workers
            until(lambda: worker.connection is None, DEADLINE_S)
            assert same(runner), "alone"
            assert worker.connection is None
            stack.plug()
            until(lambda: worker.connection is not None, DEADLINE_S, "the phone is not taken back")
            sent = worker.status().bytes_sent
            assert same(runner), "with it again"
            assert worker.status().bytes_sent > sent
        cable.close()
        stack.refuse(c.WORKER_PORT)


def same(runner: ModelRunner, cable: Cable | None = None, after_tokens: int = 0) -> bool:
    """Whether the reply is what a host alone says, bit for bit."""

    def before_step(state: SequenceState) -> None:
        if cable is not None and len(state.tokens) - len(PROMPT) >= after_tokens:
            cable.armed.set()

    if cable is None:
        tokens, logits = generate(runner, PROMPT, TOKENS)
    else:
        tokens, logits, _ = generate_with_state(runner, PROMPT, TOKENS, before_step=before_step)
    wanted_tokens, wanted_logits = answer()
    return tokens == wanted_tokens and all(map(np.array_equal, logits, wanted_logits))


def test_serve_waits_for_the_phone_uses_it_and_goes_on_without_it(bus: UsbStack) -> None:
    def started(*flags: str) -> Server:
        return Server(["serve", "--port", "0", "--device", "usb", *flags], **bus.environment)

    with serving(model=MODEL) as worker:
        server = started("--device-wait", "120")
        try:
            server.expect("waiting for usb, .* s more: no iPhone or iPad is on a USB cable")
            bus.plug()
            server.expect(f"nothing listens on port {c.WORKER_PORT} .*open Backburner on it")
            bus.listen(c.WORKER_PORT, port_of(worker))
            server.wait_until_ready()
            text = ask(server, max_tokens=12)
            health = server.health()["worker"]
            assert (health["state"], health["address"]) == ("ready", "usb")
            assert health["held_pages"] > 0
            bus.unplug()
            assert ask(server, max_tokens=12) == text
            until(lambda: server.health()["worker"]["state"] == "lost", DEADLINE_S)
            assert server.health()["status"] == "ok"
            bus.plug()
            until(lambda: server.health()["worker"]["state"] == "ready", DEADLINE_S)
            assert server.health()["worker"]["reconnects"] == 1
        finally:
            server.stop()
            bus.clear()


@pytest.mark.parametrize(
    ("flags", "says"), [(["--device-wait", "0"], "no iPhone or iPad"), ([], "waiting for usb")]
)
def test_a_start_without_a_phone_ends_as_it_is_told(bus: UsbStack, flags: Sequence[str], says: str) -> None:
    await_serials(bus, [])
    server = Server(["serve", "--port", "0", "--device", "usb", *flags], **bus.environment)
    try:
        if flags:
            assert server.wait(DEADLINE_S * 2) == 2
            assert says in server.output
        else:
            server.expect(says)
            server.signal(signal.SIGINT)
            assert server.wait() == 128 + signal.SIGINT
        assert "Traceback" not in server.output
    finally:
        server.stop()
