"""What is on the USB ports: phones behind usbmux and gadgets of ours, and how fast their links are. Opens nothing.

libusb knows the speed and the descriptors without opening a device, so no rights are needed. usbmuxd's ConnectionSpeed
is not used: 1.1.1 reports 480 Mb/s for a 10 Gb/s link.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backburner.errors import TransportError

# libusb's codes of a link's speed, in bits/s. 5 and 6 have no name in pyusb; Debian's libusb 1.0.26 gives 0 for 6.
SPEEDS = {1: 1.5e6, 2: 12e6, 3: 480e6, 4: 5e9, 5: 10e9, 6: 20e9}

USB2_BITS_PER_S = 480e6

APPLE = 0x05AC
# What usbmuxd takes for a phone or tablet; 0x12a8 and 0x12ab in usb.ids. Only where the descriptors cannot be read.
APPLE_PRODUCTS = range(0x1290, 0x12B0)
APPLE_NAMES = {0x12A8: "iPhone", 0x12AB: "iPad"}
# Vendor class, Apple's subclass, protocol usbmux.
USBMUX_INTERFACE = (0xFF, 0xFE, 0x02)

# pid.codes' first test id: for trying out, never to be shipped with. So the interface has to be ours, too.
GADGET_VENDOR, GADGET_PRODUCT = 0x1209, 0x0001
GADGET_INTERFACE = (0xFF, 0x42, 0x01)

SYSFS = Path("/sys/bus/usb/devices")


@dataclass(frozen=True, slots=True)
class Plugged:
    """A device that can be a worker."""

    kind: Literal["usbmux", "gadget"]
    name: str
    vendor: int
    product: int
    bus: int
    address: int
    ports: tuple[int, ...]  # from the root hub on
    bits_per_s: float | None  # None: libusb does not say
    serial: str | None = None  # only where the system tells it without opening the device


@functools.cache
def backend() -> Any:
    """libusb: the system's, else the one that libusb-package brings. Raises TransportError."""
    try:
        import usb.backend.libusb1

        found = usb.backend.libusb1.get_backend()
        if found is None:
            import libusb_package

            found = libusb_package.get_libusb1_backend()
    except (ImportError, OSError) as e:
        raise TransportError(f"libusb cannot be opened: {e}; pip install pyusb libusb-package") from None
    if found is None:
        raise TransportError("there is no libusb; pip install libusb-package, or install libusb-1.0")
    return found


def find() -> list[Plugged]:
    """All phones, tablets and gadgets of ours that are plugged in, by place. Raises TransportError without libusb."""
    return [describe(raw) for raw in find_raw()]


def find_raw() -> Iterator[Any]:
    """pyusb's own objects of the same devices, in the same order."""
    import usb.core

    try:
        found = [raw for raw in usb.core.find(find_all=True, backend=backend()) if _kind(raw) is not None]
    except (usb.core.USBError, NotImplementedError) as e:
        raise TransportError(f"libusb cannot list the devices: {e}") from None
    yield from sorted(found, key=lambda raw: (raw.bus or 0, raw.port_numbers or (), raw.address or 0))


def describe(raw: Any) -> Plugged:
    """What pyusb knows of a device without opening it."""
    kind = _kind(raw)
    assert kind is not None, "find_raw gives only these"
    ports = tuple(raw.port_numbers or ())
    own = "Apple device" if kind == "usbmux" else "gadget"
    return Plugged(
        kind,
        _sysfs(raw.bus, ports, "product") or APPLE_NAMES.get(raw.idProduct, own),
        raw.idVendor,
        raw.idProduct,
        raw.bus or 0,
        raw.address or 0,
        ports,
        SPEEDS.get(raw.speed or 0),
        _sysfs(raw.bus, ports, "serial"),
    )


def our_interface(raw: Any) -> Any | None:
    """The gadget's interface that carries our frames."""
    for interface in _interfaces(raw):
        if _triple(interface) == GADGET_INTERFACE and _bulk_pair(interface):
            return interface
    return None


def speed_name(bits_per_s: float | None) -> str:
    """For people: 480 Mb/s, 10 Gb/s, unknown."""
    if bits_per_s is None:
        return "unknown"
    return f"{bits_per_s / 1e9:g} Gb/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:g} Mb/s"


def is_slow(bits_per_s: float | None) -> bool:
    """Whether the link is known to run at USB 2 speed or less."""
    return bits_per_s is not None and bits_per_s <= USB2_BITS_PER_S


def warning(bits_per_s: float | None) -> str | None:
    """What to tell a person about a link that runs at USB 2 speed; None for a faster one, and for an unknown one."""
    if not is_slow(bits_per_s):
        return None
    return (
        f"the link runs at {speed_name(bits_per_s)}, USB 2 speed: the cable or the port is slow (the cable that comes "
        "with a phone is). Use a USB-C cable for 10 Gb/s, in a port that has it, without a hub in between"
    )


def _kind(raw: Any) -> Literal["usbmux", "gadget"] | None:
    if raw.idVendor == APPLE:
        interfaces = list(_interfaces(raw))
        if any(_triple(i) == USBMUX_INTERFACE and _bulk_pair(i) for i in interfaces):
            return "usbmux"
        return "usbmux" if not interfaces and raw.idProduct in APPLE_PRODUCTS else None
    if (raw.idVendor, raw.idProduct) == (GADGET_VENDOR, GADGET_PRODUCT) and our_interface(raw) is not None:
        return "gadget"
    return None


def _interfaces(raw: Any) -> Iterator[Any]:
    """Of all configurations: a phone has several, and the active one is the system's choice."""
    import usb.core

    # A device that is being unplugged, or that the system hides, has no readable descriptors.
    with contextlib.suppress(usb.core.USBError, NotImplementedError):
        for configuration in raw:
            yield from configuration


def _triple(interface: Any) -> tuple[int, int, int]:
    return interface.bInterfaceClass, interface.bInterfaceSubClass, interface.bInterfaceProtocol


def _bulk_pair(interface: Any) -> bool:
    """Whether it has two bulk endpoints, one each way."""
    bulk = [e.bEndpointAddress & 0x80 for e in interface if e.bmAttributes & 3 == 2]
    return sorted(bulk) == [0, 0x80]


def _sysfs(bus: int | None, ports: tuple[int, ...], name: str) -> str | None:
    """A string that Linux has read when the device was plugged in."""
    if not sys.platform.startswith("linux") or bus is None or not ports:
        return None
    try:
        text = (SYSFS / f"{bus}-{'.'.join(map(str, ports))}" / name).read_text(errors="replace")
    except OSError:
        return None
    return printable(text)


def printable(text: str) -> str | None:
    """What of a device's string can be shown; None if that is nothing."""
    return "".join(c for c in text.strip() if c.isprintable())[:64] or None
