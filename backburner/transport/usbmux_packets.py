"""What is said to usbmuxd and what it says, as bytes; no IO."""

import plistlib
import struct
from dataclasses import dataclass
from typing import Any

from backburner.errors import ProtocolError

# Length with this header, version of the dialect, kind of message, tag: all little-endian.
HEADER = struct.Struct("<4I")
PLIST_DIALECT = 1
PLIST_MESSAGE = 8

# A device takes some 600 bytes of a list, and its pairing record, which we never ask for, a few thousand.
BODY_MAX = 1024 * 1024

OK, BAD_COMMAND, NO_DEVICE, REFUSED, NO_SERVICE, BAD_VERSION = 0, 1, 2, 3, 4, 6


@dataclass(frozen=True, slots=True)
class UsbDevice:
    """A phone or tablet on a USB cable."""

    device_id: int  # of this plugging in; another the next time
    serial: str  # as the daemon writes it
    product_id: int = 0  # 0: not said

    @property
    def bare_serial(self) -> str:
        """To compare by: newer serials have a hyphen in some places, and the case differs in others."""
        return bare(self.serial)


@dataclass(frozen=True, slots=True)
class Attached:
    """A device is there, on a USB cable."""

    device: UsbDevice


@dataclass(frozen=True, slots=True)
class Detached:
    """A device is gone; it may be one that was never said to be there."""

    device_id: int


def bare(serial: str) -> str:
    """A serial as all sides agree on it."""
    return serial.replace("-", "").upper()


def pack(kind: str, tag: int, **fields: Any) -> bytes:
    """A request."""
    said = {
        "MessageType": kind,
        "ClientVersionString": "backburner",
        "ProgName": "backburner",
        "kLibUSBMuxVersion": 3,
        **fields,
    }
    body = plistlib.dumps(said)
    return HEADER.pack(HEADER.size + len(body), PLIST_DIALECT, PLIST_MESSAGE, tag) + body


def pack_connect(device_id: int, port: int, tag: int) -> bytes:
    """The request after whose answer the socket is a stream to that port of the device."""
    # The port goes in network order inside a little-endian integer.
    return pack("Connect", tag, DeviceID=device_id, PortNumber=(port & 0xFF) << 8 | port >> 8)


def unpack_header(header: bytes) -> tuple[int, int]:
    """How many bytes follow, and the tag. Raises ProtocolError."""
    length, dialect, kind, tag = HEADER.unpack(header)
    if (dialect, kind) != (
        PLIST_DIALECT,
        PLIST_MESSAGE,
    ) or not HEADER.size <= length <= HEADER.size + BODY_MAX:
        raise ProtocolError(
            f"what answers for usbmuxd sent no message of its protocol (version {dialect}, kind {kind}, "
            f"{length:,} bytes); is USBMUXD_SOCKET_ADDRESS right?"
        )
    return length - HEADER.size, tag


def unpack_body(body: bytes) -> dict[str, Any]:
    """The message after a header. Raises ProtocolError."""
    try:
        message = plistlib.loads(body, fmt=plistlib.FMT_XML)
    except Exception as error:  # expat's and plistlib's own are of many kinds
        raise ProtocolError(f"usbmuxd sent a message that cannot be read: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("usbmuxd sent something that is not a message")
    return message


def read_result(message: dict[str, Any]) -> int:
    """The code of an answer. Raises ProtocolError."""
    code = message.get("Number")
    if message.get("MessageType") != "Result" or type(code) is not int:
        raise ProtocolError(f"usbmuxd answered with {_kind(message)} instead of Result")
    return code


def read_devices(message: dict[str, Any]) -> list[UsbDevice]:
    """The devices on USB cables in an answer to ListDevices. Raises ProtocolError."""
    if "DeviceList" not in message and message.get("MessageType") == "Result":
        raise ProtocolError(f"usbmuxd does not list its devices (code {read_result(message)}); update it")
    entries = message.get("DeviceList")
    if not isinstance(entries, list):
        raise ProtocolError(f"usbmuxd answered with {_kind(message)} instead of a list of devices")
    return [device for device in map(_read_device, entries) if device is not None]


def read_event(message: dict[str, Any]) -> Attached | Detached | None:
    """What a listener is told; None for what does not concern us. Raises ProtocolError."""
    kind = message.get("MessageType")
    if kind == "Attached":
        device = _read_device(message)
        return Attached(device) if device is not None else None
    if kind == "Detached":
        device_id = message.get("DeviceID")
        if type(device_id) is not int:
            raise ProtocolError("usbmuxd says that a device is gone, but not which")
        return Detached(device_id)
    return None  # such as Paired, which newer daemons add


def _read_device(entry: object) -> UsbDevice | None:
    """None for one that is not on a cable: Apple's daemon lists devices on Wi-Fi, too."""
    known = entry.get("Properties") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(known, dict):
        raise ProtocolError("usbmuxd lists a device without properties")
    if known.get("ConnectionType", "USB") != "USB":
        return None
    device_id, serial = entry.get("DeviceID", known.get("DeviceID")), known.get("SerialNumber")
    product_id = known.get("ProductID")
    if type(device_id) is not int or not isinstance(serial, str) or not 0 <= device_id < 2**32:
        raise ProtocolError("usbmuxd lists a device without number or serial")
    return UsbDevice(device_id, serial, product_id if type(product_id) is int else 0)


def _kind(message: dict[str, Any]) -> str:
    return repr(message.get("MessageType"))[:40]
