"""Which devices could be workers, how their cables are, and what a worker on one says of itself."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from backburner import __version__
from backburner.config import WORKER_PORT, Device
from backburner.errors import BackburnerError, TransportError
from backburner.transport import cable, usbmux
from backburner.transport.link import Link, LinkSpeed
from backburner.transport.messages import PROTOCOL_VERSION, Hello, PageGeometry
from backburner.transport.usbmux_packets import UsbDevice, bare

# What greeting and measuring a worker may take; a USB 2 cable carries the measurement in half a second.
PROBE_TIMEOUT_S = 5.0

# A worker wants a host's model in the greeting: the smallest there is, so that it never refuses for want of memory.
GEOMETRY = PageGeometry(1, 1, 16, 16, "float32", 0.25)


@dataclass(frozen=True, slots=True)
class Probed:
    """What a worker said, and how fast its link is."""

    name: str
    software: str
    protocol: int
    engine: str
    engines: tuple[str, ...]
    memory_bytes: int
    free_bytes: int
    held_pages: int
    layers: int
    speed: LinkSpeed


@dataclass(frozen=True, slots=True)
class Found:
    """A device, or an address that was asked for."""

    name: str
    device: Device  # what --device would say
    serial: str | None
    bits_per_s: float | None  # of its cable; None: unknown, or there is none
    cabled: bool
    usbmux: bool | None  # whether usbmuxd has it; None: it is none of its kind
    worker: Probed | None = None
    error: str | None = None  # why there is no worker


def probe(connect: Callable[[], Link], timeout_s: float = PROBE_TIMEOUT_S) -> Probed:
    """Greets a worker as a host without a model would, measures the link and leaves. Raises BackburnerError."""
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        software=f"backburner {__version__}",
        name="probe",
        fingerprint=bytes(32),
        geometry=GEOMETRY,
        layers=(0,),
        engine="numpy",
    )
    link = connect()
    try:
        welcome = link.greet(hello, timeout_s)
        speed = link.measure()
    finally:
        link.close()
    return Probed(
        welcome.name,
        welcome.software,
        welcome.protocol,
        welcome.engine,
        tuple(welcome.engines),
        welcome.memory_bytes,
        welcome.free_bytes,
        welcome.held_pages,
        welcome.layers,
        speed,
    )


@dataclass(frozen=True, slots=True)
class Survey:
    """What was seen, and what could not be looked at."""

    devices: tuple[Found, ...]
    notes: tuple[str, ...]  # why something may be missing


def survey(port: int = WORKER_PORT) -> Survey:
    """Everything that is plugged in, without talking to workers. Never raises for what is missing."""
    notes = []
    try:
        plugged = cable.find()
    except TransportError as e:
        plugged = []
        notes.append(f"USB speeds are unknown: {e}")
    try:
        phones = usbmux.list_devices()
    except BackburnerError as e:
        phones = []
        notes.append(str(e))
    return Survey(tuple(match(plugged, phones)), tuple(notes))


def match(plugged: Sequence[cable.Plugged], phones: Sequence[UsbDevice]) -> list[Found]:
    """The two lists as one: usbmuxd knows the serial, libusb the speed."""
    found = []
    rest = list(plugged)
    for phone in sorted(phones, key=lambda p: p.serial):
        mates = [p for p in rest if p.kind == "usbmux" and _same(p, phone)]
        twins = [p for p in phones if p is not phone and p.product_id == phone.product_id]
        # macOS tells no serial: of two phones of one kind nobody knows which of the speeds is whose.
        mate = mates[0] if len(mates) == 1 and (mates[0].serial or not twins) else None
        if mates:
            rest.remove(mates[0])
        found.append(
            Found(
                mate.name if mate else "iPhone or iPad",
                Device("usb", serial=phone.serial),
                phone.serial,
                mate.bits_per_s if mate else None,
                True,
                True,
            )
        )
    for one in rest:
        if one.kind == "gadget":
            device = Device("bulk", serial=one.serial or "")
            found.append(Found(one.name, device, one.serial, one.bits_per_s, True, None))
        else:
            device = Device("usb", serial=one.serial or "")
            untrusted = "usbmuxd does not show it: unlock it and tap 'Trust' when it asks"
            found.append(Found(one.name, device, one.serial, one.bits_per_s, True, False, None, untrusted))
    return found


def _same(one: cable.Plugged, phone: UsbDevice) -> bool:
    if one.serial is not None:
        return bare(one.serial) == phone.bare_serial
    return phone.product_id in (0, one.product)


def at(device: Device) -> Found:
    """An address that was asked for by name."""
    return Found(str(device), device, None, None, False, None)


def with_worker(found: Found, connect: Callable[[], Link]) -> Found:
    """The same, with what a worker there says or why there is none."""
    if found.error is not None:
        return found
    try:
        return replace(found, worker=probe(connect))
    except BackburnerError as e:
        return replace(found, error=str(e))


def shorten(serial: str | None) -> str:
    """Enough of a serial to tell two apart, and not more on a screen that others see."""
    if serial is None:
        return "-"
    return serial if len(serial) <= 8 else f"{serial[:4]}…{serial[-4:]}"


def as_json(survey: Survey) -> str:
    """For scripts."""
    devices = []
    for one in survey.devices:
        entry: dict[str, Any] = asdict(one)
        entry["serial"] = None if one.serial is None else shorten(one.serial)
        del entry["device"]
        entry["place"] = f"{one.device.kind}:{shorten(one.serial)}" if one.serial else str(one.device)
        entry["link_speed"] = cable.speed_name(one.bits_per_s) if one.cabled else None
        entry["warning"] = cable.warning(one.bits_per_s)
        devices.append(entry)
    return json.dumps({"devices": devices, "notes": list(survey.notes)}, indent=2)
