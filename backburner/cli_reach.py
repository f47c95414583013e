"""How a --device becomes a way to connect, of every kind that there is."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backburner import config as c
from backburner.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from backburner.engine.startup import Connector
    from backburner.transport.channel import Channel
    from backburner.transport.link import Link
    from backburner.worker.loopback import LoopbackWorker


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that was asked for, how to reach it, and its process if that is ours to start."""

    device: c.Device
    connect: "Connector"
    loopback: "LoopbackWorker | None"


def workers_for(
    devices: Sequence[c.Device], memory_bytes: int, log_level: str, model: str | None, wait_s: float
) -> list[Worker]:
    """One for each --device, in their order; none for `none`. model: for those on this machine to run layers of."""
    if any(device.kind == "none" for device in devices):
        if len(devices) > 1:
            raise ConfigError("--device none means no worker at all; leave it out, or leave out the others.")
        return []
    workers = []
    addresses = set()
    for device in devices:
        if device.kind == "loopback":
            workers.append(_loopback_worker(device, memory_bytes, log_level, model))
            continue
        if device.kind == "usb":
            same = ("", device.serial.replace("-", "").upper())
            if sum(o.kind == "usb" and o.serial.replace("-", "").upper() in same for o in devices) > 1:
                raise ConfigError("--device usb is given twice; name each phone: usb:SERIAL, and only once.")
            workers.append(_usb_worker(device, wait_s))
            continue
        if device.kind == "bulk":
            if sum(o.kind == "bulk" and o.serial in ("", device.serial) for o in devices) > 1:
                raise ConfigError(
                    "--device bulk is given twice; name each gadget: bulk:SERIAL, and only once."
                )
            workers.append(_bulk_worker(device))
            continue
        from backburner.transport.tcp import resolve

        numeric, loopback = resolve(device.host)
        address = (numeric, device.port)
        if address in addresses:
            raise ConfigError(
                f"--device tcp://{c.join_address(device.host, device.port)} is given twice; a worker serves one link."
            )
        addresses.add(address)
        workers.append(_tcp_worker(device, loopback))
    return workers


@contextlib.contextmanager
def reach(device: c.Device) -> "Iterator[Callable[[], Link]]":
    """How to connect to one worker, for the commands that look at it; one of our own ends with the look."""
    from backburner.attention.select import make_engine

    (one,) = workers_for([device], 2**28, "warning", None, 0.0)
    try:
        yield one.connect(make_engine("numpy")).connect
    finally:
        if one.loopback is not None:
            one.loopback.close()


def _loopback_worker(device: c.Device, memory_bytes: int, log_level: str, model: str | None) -> Worker:
    from backburner.worker.loopback import LoopbackWorker

    loopback = LoopbackWorker(memory_bytes, log_level, wrap=_shaper(device.shape), model=model)
    from backburner.engine.worker_link import Route

    return Worker(device, lambda engine: Route(loopback.connector(engine.name), str(device)), loopback)


def _usb_worker(device: c.Device, wait_s: float) -> Worker:
    from backburner.engine.worker_link import Route
    from backburner.transport.link import Link
    from backburner.transport.usbmux import Phone

    phone, shaped = Phone(device.serial or None, c.WORKER_PORT), _shaper(device.shape)
    # Two phones, say, are found before the model is loaded; one that is away may come while that goes on.
    try:
        phone.find()
    except TransportError:
        if not wait_s:
            raise
    route = Route(lambda: Link(shaped(phone.connect())), str(device), phone.watch, wait_s)
    return Worker(device, lambda engine: route, None)


def _bulk_worker(device: c.Device) -> Worker:
    from backburner.engine.worker_link import Route
    from backburner.transport.bulk import connect
    from backburner.transport.link import Link

    shaped = _shaper(device.shape)
    return Worker(
        device, lambda engine: Route(lambda: Link(shaped(connect(device.serial or None))), str(device)), None
    )


def _tcp_worker(device: c.Device, loopback: bool) -> Worker:
    from backburner.engine.worker_link import Route
    from backburner.transport.link import Link
    from backburner.transport.tcp import connect

    shaped = _shaper(device.shape)
    dial: Callable[[], Channel]
    if loopback:

        def dial() -> "Channel":
            return connect(device.host, device.port)
    else:
        dial = _paired_worker(device)
    return Worker(device, lambda engine: Route(lambda: Link(shaped(dial())), str(device)), None)


def _paired_worker(device: c.Device) -> "Callable[[], Channel]":
    """Over TLS, to a worker whose key is known. Raises ConfigError if none is."""
    from backburner.transport.identity import KeyStore
    from backburner.transport.secure import connector

    where = c.join_address(device.host, device.port)
    store = KeyStore(c.pairing_folder())
    if not store.peers("worker"):
        raise ConfigError(
            f"{where} is another machine, and this one is paired with no worker. Start `backburner worker --listen "
            f"0.0.0.0:{device.port} --pair` there and run `backburner pair tcp://{where}` here."
        )
    return connector(device.host, device.port, where, store)


def _shaper(shape: c.LinkShape | None) -> "Callable[[Channel], Channel]":
    """What makes a channel as slow as the device says."""
    if shape is None:
        return lambda channel: channel
    from backburner.transport.shaped import ShapedChannel

    return lambda channel: ShapedChannel(channel, shape.bandwidth_bytes_per_s, shape.rtt_s)
