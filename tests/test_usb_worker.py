"""A worker on a phone: waited for at the start, lost with the cable, and found by the event that it is there again."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from backburner.engine import startup, worker_link
from backburner.engine.startup import _awaited
from backburner.engine.worker_link import Route
from backburner.errors import ConfigError, LinkClosed
from backburner.transport.link import Link
from backburner.transport.usbmux import Phone
from tests.host import generate, host, long_prompt, port_of, serving
from tests.processes import until
from tests.usbmux_daemon import OTHER, SERIAL, Daemon, entry, usbmux_daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with usbmux_daemon() as made:
        yield made


def test_a_phone_that_is_plugged_in_again_is_used_at_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "RETRY_FIRST_S", 60.0)  # without the event nothing would happen
    with serving() as server:
        daemon.ports = {50_060: port_of(server)}
        phone = Phone(None, 50_060, daemon.address)
        with host(lambda: Link(phone.connect()), watch=phone.watch) as runner:
            (worker,) = runner.workers
            until(lambda: daemon.listeners == 1)
            first = worker.connection
            assert first is not None
            daemon.devices = []
            first.link.give_up("pulled")
            assert worker.connection is None
            until(lambda: "no iPhone" in (worker.lost or ""))
            daemon.attach(entry(9))
            until(lambda: worker.connection is not None, 10)
            assert worker.reconnects == 1
            assert len(generate(runner, long_prompt(), 2)[0]) == 2


class Report:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def stage(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def done(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_start_waits_for_the_phone_and_says_why_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "LOOK_INTERVAL_S", 0.02)
    daemon.devices = []
    phone, report = Phone(None, 50_060, daemon.address), Report()
    attempts = 0

    def reach() -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            daemon.attach(entry())
        if attempts == 6:
            daemon.ports = {50_060: app.getsockname()[1]}
        return phone.connect()

    with socket.create_server(("127.0.0.1", 0)) as app:
        channel: Any = _awaited(Route(reach, "usb", phone.watch, 600), reach, report)
        assert channel.peer == f"usb:{SERIAL}"
        channel.close()
    first, second = report.notes
    assert first.startswith("waiting for usb, 600 s more: no iPhone or iPad is on a USB cable; plug it in")
    assert "open Backburner on it" in second


def test_a_start_that_waited_in_vain_says_so_and_what_to_do(daemon: Daemon) -> None:
    phone = Phone(OTHER, 50_060, daemon.address)

    def reach() -> Any:
        return phone.connect()

    with pytest.raises(
        LinkClosed, match=rf"waited 0.1 s for usb: .*{OTHER} is not on a cable: there is {SERIAL}"
    ):
        _awaited(Route(reach, "usb", phone.watch, 0.1), reach, Report())


def test_a_start_does_not_wait_where_waiting_cannot_help(daemon: Daemon) -> None:
    daemon.devices = [entry(), entry(4, OTHER)]
    phone = Phone(None, 50_060, daemon.address)
    with pytest.raises(ConfigError, match="several phones"):
        _awaited(Route(phone.connect, "usb", phone.watch, 20), phone.connect, Report())  # type: ignore[arg-type]
