"""USB devices for umockdev: sysfs attributes and descriptors, without hardware."""

import struct

from backburner.transport.cable import USBMUX_INTERFACE


def iphone(mbps: int, port: int = 1, product: int = 0x12A8) -> str:
    return device(
        mbps, port, 0x05AC, product, USBMUX_INTERFACE, name="iPhone", serial="00008150001122334455667A"
    )


def device(
    mbps: int = 480,
    port: int = 1,
    vendor: int = 0x05AC,
    product: int = 0x12A8,
    triple: tuple[int, int, int] = (255, 0, 0),
    name: str | None = None,
    serial: str | None = None,
) -> str:
    """A device on bus 2 at `port`, with one interface of two bulk endpoints."""
    place, number = f"2-{port}", 4 + port
    attributes = {
        "busnum": "2",
        "devnum": str(number),
        "speed": str(mbps),
        "bConfigurationValue": "1",
        "idVendor": f"{vendor:04x}",
        "idProduct": f"{product:04x}",
        "bNumConfigurations": "1",
    }
    if name is not None:
        attributes["product"] = name
    if serial is not None:
        attributes["serial"] = serial
    lines = [
        f"P: /devices/pci0000:00/0000:00:14.0/usb2/{place}",
        f"N: bus/usb/002/{number:03d}",
        "E: SUBSYSTEM=usb",
        "E: DEVTYPE=usb_device",
        f"E: DEVNAME=bus/usb/002/{number:03d}",
        f"E: BUSNUM=002\nE: DEVNUM={number:03d}",
        f"E: PRODUCT={vendor:x}/{product:x}/100",
        *(f"A: {key}={value}\\n" for key, value in attributes.items()),
        f"H: descriptors={descriptors(vendor, product, triple).hex().upper()}",
    ]
    return "\n".join(lines) + "\n"


def descriptors(vendor: int, product: int, triple: tuple[int, int, int]) -> bytes:
    """A device, a configuration, an interface, endpoints 0x04 and 0x85."""
    endpoints = b"".join(struct.pack("<BBBBHB", 7, 5, address, 2, 512, 0) for address in (0x04, 0x85))
    interface = struct.pack("<BBBBBBBBB", 9, 4, 0, 0, 2, *triple, 0)
    total = 9 + len(interface) + len(endpoints)
    configuration = struct.pack("<BBHBBBBB", 9, 2, total, 1, 1, 0, 0xC0, 250)
    head = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0200, 0, 0, 0, 64, vendor, product, 0x0100, 1, 2, 3, 1)
    return head + configuration + interface + endpoints
