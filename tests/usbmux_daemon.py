"""A usbmuxd that a test plays: it lists what it is told to, and says what it is told to."""

import contextlib
import os
import plistlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from backburner.transport.usbmux_packets import HEADER, UsbDevice

SERIAL = "00008150-000A11223344001C"
OTHER = "00008140-000B55667788002D"
PHONE = UsbDevice(3, SERIAL, 0x12A8)


def entry(device_id: int = 3, serial: str = SERIAL, connection: str = "USB") -> dict[str, Any]:
    return {
        "MessageType": "Attached",
        "DeviceID": device_id,
        "Properties": {
            "ConnectionSpeed": 480000000,
            "ConnectionType": connection,
            "DeviceID": device_id,
            "LocationID": 0x20001,
            "ProductID": 0x12A8,
            "SerialNumber": serial,
        },
    }


def packet(message: dict[str, Any], tag: int) -> bytes:
    body = plistlib.dumps(message)
    return HEADER.pack(16 + len(body), 1, 8, tag) + body


def result(code: int, tag: int = 1) -> bytes:
    return packet({"MessageType": "Result", "Number": code}, tag)


class Daemon:
    """usbmuxd as a test wants it. `answer` may be given what comes, to say anything at all instead."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="mux", dir="/tmp")  # macOS takes 104 letters for a path
        self.address = f"{self.folder}/usbmuxd"
        self.devices: list[dict[str, Any]] = [entry()]
        self.ports: dict[int, int] = {}  # of the phone, to ours
        self.code: int | None = None
        self.answer: Callable[[socket.socket, dict[str, Any]], None] | None = None
        self.asked: list[dict[str, Any]] = []
        self._listeners: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self.open()

    def open(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen(8)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def shut(self) -> None:
        """As when the daemon ends: everything hangs up, and nothing listens."""
        for sock in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets, self._listeners = [], []
        with contextlib.suppress(OSError):
            socket.socket(socket.AF_UNIX).connect(self.address)
        os.unlink(self.address)

    def attach(self, device: dict[str, Any]) -> None:
        self.devices.append(device)
        self.tell(device)

    def tell(self, message: dict[str, Any]) -> None:
        for sock in self._listeners:
            sock.sendall(packet(message, 0))

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            length, _, _, tag = HEADER.unpack(sock.recv(16, socket.MSG_WAITALL))
            message = plistlib.loads(sock.recv(length - 16, socket.MSG_WAITALL))
            self.asked.append(message)
            if self.answer is not None:
                self.answer(sock, message)
            elif message["MessageType"] == "ListDevices":
                sock.sendall(packet({"DeviceList": self.devices}, tag))
            elif message["MessageType"] == "Listen":
                sock.sendall(result(0, tag) + b"".join(packet(one, 0) for one in self.devices))
                self._listeners.append(sock)
            else:
                self._connect(sock, message, tag)
        except (OSError, ValueError):
            sock.close()

    def _connect(self, sock: socket.socket, message: dict[str, Any], tag: int) -> None:
        port = socket.ntohs(message["PortNumber"])
        there = any(message["DeviceID"] == one["DeviceID"] for one in self.devices)
        code = self.code if self.code is not None else 2 if not there else 0 if port in self.ports else 3
        if code:
            sock.sendall(result(code, tag))
            return
        ours = socket.create_connection(("127.0.0.1", self.ports[port]))
        self._sockets.append(ours)
        sock.sendall(result(0, tag))
        for source, sink in ((sock, ours), (ours, sock)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def usbmux_daemon() -> Iterator[Daemon]:
    made = Daemon()
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.shut()
        shutil.rmtree(made.folder)
