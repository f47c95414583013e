"""Phones that are not there: USB devices under umockdev that speak the mux protocol, and join ports of theirs to ours.

A program of its own, for the system's Python, which has umockdev's bindings:

    umockdev-wrapper /usr/bin/python3 tests/phone.py usbmuxd -f -v -p

starts the daemon beside them, which reaches them through the real libusb. Orders come on standard input, one a line,
each answered by `ok`: plug SERIAL LOCATION, unplug SERIAL, listen SERIAL PORT OUR_PORT, refuse SERIAL PORT, quit.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import gi

gi.require_version("UMockdev", "1.0")
from gi.repository import UMockdev  # noqa: E402 - once it is known which version

# usbfs: the number of each ioctl, whose group is 'U'.
GETDRIVER, SUBMITURB, DISCARDURB, REAPURBNDELAY, CLAIM, RELEASE, GET_CAPABILITIES = 8, 10, 11, 13, 15, 16, 26
CAPABILITIES = 0x01 | 0x02 | 0x04  # zero packets, continued transfers, no limit to a packet

URB_BYTES = 56
URB_CONTROL, URB_BULK = 2, 3

ENDPOINT_OUT, ENDPOINT_IN = 0x04, 0x85

# The mux protocol, version 1: a big-endian protocol and length, then for TCP a bare header of 20 bytes.
MUX = struct.Struct(">II")
VERSION, TCP = 0, 6
TCP_HEADER = struct.Struct(">HHIIBBHHH")
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
WINDOW = 131_072
PAYLOAD_MAX = 15_000  # the daemon reads 16,384 bytes at once

# What a daemon may take to let go of a phone that is gone, on a busy machine.
RELEASE_S = 10.0


class Node:
    """The device's file. poll() says that it can be written to while a URB is done, as the kernel's does.

    That is a pipe of one page, which a byte fills. A plain file is always ready: the daemon would spin on it, and
    as its poll never times out, never send the acknowledgements that it owes: a reply of a few windows stood still.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        self._path = path
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, 4096)
        self._ready = True
        self.set_ready(False)

    def set_ready(self, ready: bool) -> None:
        if ready and not self._ready:
            os.read(self._end, 1)
        elif self._ready and not ready:
            os.write(self._end, b"\0")
        self._ready = ready

    def remove(self) -> None:
        """The name only: a late answer may still turn to the pipe."""
        self._path.unlink()


def descriptors() -> bytes:
    """A phone at 10 Gb/s: one interface, that of usbmux."""
    device = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0320, 0, 0, 0, 9, 0x05AC, 0x12A8, 0x1500, 1, 2, 3, 1)
    companion = struct.pack("<BBBBH", 6, 0x30, 0, 0, 0)
    ends = b"".join(
        struct.pack("<BBBBHB", 7, 5, end, 2, 1024, 0) + companion for end in (ENDPOINT_OUT, ENDPOINT_IN)
    )
    interface = struct.pack("<9B", 9, 4, 0, 0, 2, 255, 254, 2, 0)
    config = struct.pack("<BBHBBBBB", 9, 2, 9 + len(interface + ends), 1, 1, 0, 0xC0, 250)
    return device + config + interface + ends


def string(text: str) -> bytes:
    encoded = text.encode("utf-16-le")
    return bytes([2 + len(encoded), 3]) + encoded


class Joined:
    """One TCP connection of the mux, joined to a socket of ours."""

    def __init__(self, phone: "Phone", host_port: int, port: int, our_port: int) -> None:
        self._phone = phone
        self._ports = (host_port, port)
        self._our_port = our_port
        self._sock = socket.socket()
        self._changed = threading.Condition()  # guards all below
        self._sent = 0
        self._acked = 0
        self._host_window = WINDOW
        self._received = 0
        self._waiting: deque[bytes] = deque()
        self._closed = False
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        threading.Thread(target=self._down, daemon=True).start()

    def arrived(self, ack: int, window: int, payload: bytes) -> None:
        with self._changed:
            self._acked, self._host_window = ack - 1, window
            if payload:
                self._waiting.append(payload)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _send(self, flags: int, payload: bytes = b"", seq: int | None = None) -> None:
        with self._changed:
            ack = 1 + self._received
            at = 1 + self._sent if seq is None else seq
            self._sent += len(payload)
            self._phone.send_tcp(*self._ports, at, ack, flags, payload)

    def _up(self) -> None:
        """From the host to our socket; it is told that bytes are taken once they are."""
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closed)
                    if self._closed:
                        return
                    payload = b"".join(self._waiting)
                    self._waiting.clear()
                self._sock.sendall(payload)
                with self._changed:
                    self._received += len(payload)
                self._send(ACK)

    def _down(self) -> None:
        """From our socket to the host, no more than it has room for."""
        try:
            self._sock.connect(("127.0.0.1", self._our_port))
        except OSError:
            self._phone.forget(*self._ports)
            self._phone.send_tcp(*self._ports, 0, 1, RST)
            return
        self._send(SYN | ACK, seq=0)
        threading.Thread(target=self._up, daemon=True).start()
        with contextlib.suppress(OSError):
            while payload := self._sock.recv(PAYLOAD_MAX):
                with self._changed:
                    while not self._closed and self._sent + len(payload) - self._acked > self._host_window:
                        self._changed.wait()
                    if self._closed:
                        break
                self._send(ACK, payload)
        with self._changed:  # a reset overtakes what the daemon has not passed on
            self._changed.wait_for(lambda: self._closed or self._acked >= self._sent, 1.0)
        if not self._closed:
            self._send(RST)
        self._phone.forget(*self._ports)
        self._sock.close()


class Phone(UMockdev.IoctlBase):
    """A device: its descriptors, its bulk endpoints and what it says there."""

    def __init__(self, serial: str, ports: dict[int, int], node: Node) -> None:
        super().__init__()
        self._serial = serial
        self._ports = ports  # of the phone, to ours
        self._changed = threading.Condition()  # guards all below
        self._node = node
        self._gone = False
        self._claimed = False
        self._pending: deque[Any] = deque()  # URBs that wait for something to come in
        self._done: deque[tuple[Any, Any, int, int, bytes]] = (
            deque()
        )  # URB, buffer, status, length, what came in
        self._outgoing: deque[bytes] = deque()  # to the host
        self._incoming = b""
        self._joined: dict[tuple[int, int], Joined] = {}

    # usbfs. All of the daemon waits for each answer, so that nothing here may wait for anything.

    def do_handle_ioctl(self, client: Any) -> bool:
        number = client.get_request() & 0xFF
        try:
            if number in (CLAIM, RELEASE):
                with self._changed:
                    self._claimed = number == CLAIM
                    self._changed.notify_all()
            if number == SUBMITURB:
                self._submit(client)
            elif number == REAPURBNDELAY:
                self._reap(client)
            elif number == DISCARDURB:
                self._discard(client)
            elif self._gone:
                client.complete(-1, errno.ENODEV)
            elif number == GETDRIVER:
                client.complete(-1, errno.ENODATA)
            elif number == GET_CAPABILITIES:
                client.get_arg().resolve(0, 4).update(0, struct.pack("=I", CAPABILITIES))
                client.complete(0, 0)
            else:  # claim, release, reset: granted
                client.complete(0, 0)
        except Exception as e:  # the daemon must not hang on a fault of ours
            print(f"phone: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            client.complete(-1, errno.EIO)
        return True

    def _submit(self, client: Any) -> None:
        urb = client.get_arg().resolve(0, URB_BYTES)
        kind, endpoint = bytes(urb.retrieve())[:2]
        (length,) = struct.unpack_from("=i", bytes(urb.retrieve()), 24)
        buffer = urb.resolve(16, length) if length else None
        data = bytes(buffer.retrieve()) if buffer is not None else b""
        with self._changed:
            gone = self._gone
            if gone:
                # usbmuxd does not look whether it may submit another read, and would wait for that one for ever. So
                # it always may, as if the phone had gone a moment later.
                self._finish(urb, buffer, -errno.ESHUTDOWN)
            elif kind == URB_CONTROL:
                status, reply = self._control(data)
                self._finish(urb, buffer, status, len(reply), data[:8] + reply if reply else b"")
            elif kind == URB_BULK and endpoint == ENDPOINT_IN:
                self._pending.append((urb, buffer))
                self._fill()
            else:
                self._finish(urb, buffer, 0, length)
        client.complete(0, 0)
        if kind == URB_BULK and endpoint == ENDPOINT_OUT and not gone:
            self._take(data)

    def _finish(self, urb: Any, buffer: Any, status: int, length: int = 0, data: bytes = b"") -> None:
        """A URB is done: the daemon wakes and fetches it."""
        self._done.append((urb, buffer, status, length, data))
        self._node.set_ready(True)

    def _reap(self, client: Any) -> None:
        with self._changed:
            if not self._done:
                client.complete(-1, errno.ENODEV if self._gone else errno.EAGAIN)
                return
            urb, buffer, status, length, data = self._done.popleft()
            self._node.set_ready(bool(self._done))
        if data:
            buffer.update(0, data)
        urb.update(4, struct.pack("=i", status))
        urb.update(28, struct.pack("=i", length))
        client.get_arg().resolve(0, 8).set_ptr(0, urb)
        client.complete(0, 0)

    def _discard(self, client: Any) -> None:
        (address,) = struct.unpack("=Q", bytes(client.get_arg().retrieve())[:8])
        with self._changed:
            for entry in list(self._pending):
                if entry[0].client_addr == address:
                    self._pending.remove(entry)
                    self._finish(*entry, -errno.ENOENT)
                    break
        client.complete(0, 0)

    def _control(self, setup: bytes) -> tuple[int, bytes]:
        kind, request, value, _, length = struct.unpack_from("<BBHHH", setup)
        if (kind, request, value >> 8) == (0x80, 6, 3):  # a string
            texts = {0: b"\x04\x03\x09\x04", 1: string("Apple Inc."), 2: string("iPhone")}
            texts[3] = string(self._serial)
            if (value & 0xFF) in texts:
                return 0, texts[value & 0xFF][:length]
        return -errno.EPIPE, b""

    # The mux

    def _fill(self) -> None:
        while self._pending and self._outgoing:
            packet = self._outgoing.popleft()
            self._finish(*self._pending.popleft(), 0, len(packet), packet)

    def _take(self, data: bytes) -> None:
        self._incoming += data
        while len(self._incoming) >= MUX.size:
            protocol, length = MUX.unpack_from(self._incoming)
            if len(self._incoming) < length:
                return
            packet, self._incoming = self._incoming[MUX.size : length], self._incoming[length:]
            if protocol == VERSION:
                self._send(VERSION, struct.pack(">III", 1, 0, 0))
            elif protocol == TCP:
                self._take_tcp(packet)

    def _take_tcp(self, packet: bytes) -> None:
        host_port, port, _, ack, _, flags, window, _, _ = TCP_HEADER.unpack_from(packet)
        key = (host_port, port)
        if flags & SYN:
            our_port = self._ports.get(port)
            if our_port is None:
                self.send_tcp(host_port, port, 0, 1, RST)
                return
            self._joined[key] = joined = Joined(self, host_port, port, our_port)
            joined.start()
        elif (found := self._joined.get(key)) is not None:
            if flags & (RST | FIN):
                found.close()
            else:
                found.arrived(ack, window << 8, packet[TCP_HEADER.size :])

    def send_tcp(
        self, host_port: int, port: int, seq: int, ack: int, flags: int, payload: bytes = b""
    ) -> None:
        header = TCP_HEADER.pack(port, host_port, seq, ack, 5 << 4, flags, WINDOW >> 8, 0, 0)
        self._send(TCP, header + payload)

    def _send(self, protocol: int, packet: bytes) -> None:
        with self._changed:
            if not self._gone:
                self._outgoing.append(MUX.pack(protocol, MUX.size + len(packet)) + packet)
                self._fill()

    def forget(self, host_port: int, port: int) -> None:
        self._joined.pop((host_port, port), None)

    def leave(self) -> None:
        """Is pulled: what the daemon waits for ends with an error."""
        with self._changed:
            self._gone = True
            while self._pending:
                self._finish(*self._pending.popleft(), -errno.ESHUTDOWN)
        for joined in list(self._joined.values()):
            joined.close()

    def await_release(self) -> None:
        """Until the daemon has let go of it, if it ever held it."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._claimed, RELEASE_S):
                print("phone: the daemon does not let go of it", file=sys.stderr, flush=True)


class Bench:
    """The phones and the bus they are plugged into."""

    def __init__(self) -> None:
        self._testbed = UMockdev.Testbed.new()
        self._phones: dict[str, tuple[Phone, str, Node]] = {}
        self._ports: dict[str, dict[int, int]] = {}
        self._devices = 4

    def plug(self, serial: str, location: str) -> None:
        self._devices += 1  # each plugging in has another number
        path, name = f"/devices/pci0000:00/usb2/2-{location}", f"/dev/bus/usb/002/{self._devices:03}"
        attributes = {
            "busnum": 2,
            "devnum": self._devices,
            "speed": 10000,
            "idVendor": "05ac",
            "idProduct": "12a8",
            "bConfigurationValue": 1,
            "bNumConfigurations": 1,
            "serial": serial,
        }
        # First, for adding the device tells the daemon, who opens it at once. Without a line N: the file stays ours.
        node = Node(Path(self._testbed.get_root_dir() + name))
        phone = Phone(serial, self._ports.setdefault(serial, {}), node)
        self._phones[serial] = (phone, f"/sys{path}", node)
        self._testbed.attach_ioctl(name, phone)
        self._testbed.add_from_string(
            f"P: {path}\nE: SUBSYSTEM=usb\nE: DEVTYPE=usb_device\n"
            f"E: DEVNAME={name}\nE: BUSNUM=002\nE: DEVNUM={self._devices:03}\nE: PRODUCT=5ac/12a8/1500\n"
            + "".join(f"A: {name}={value}\\n\n" for name, value in attributes.items())
            + f"H: descriptors={descriptors().hex().upper()}\n"
        )

    def unplug(self, serial: str) -> None:
        phone, path, node = self._phones.pop(serial)
        phone.leave()
        self._testbed.uevent(path, "remove")
        phone.await_release()
        self._testbed.remove_device(path)
        node.remove()

    def listen(self, serial: str, port: str, our_port: str) -> None:
        self._ports.setdefault(serial, {})[int(port)] = int(our_port)

    def refuse(self, serial: str, port: str) -> None:
        self._ports.setdefault(serial, {}).pop(int(port), None)

    def clear(self) -> None:
        for serial in list(self._phones):
            self.unplug(serial)


def main() -> None:
    bench = Bench()
    daemon = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2)
    try:
        print("ok", flush=True)
        for line in sys.stdin:
            order, *arguments = line.split()
            if order == "quit":
                break
            getattr(bench, order)(*arguments)
            print("ok", flush=True)
    except Exception:
        traceback.print_exc()
    finally:
        bench.clear()
        daemon.terminate()
        try:
            daemon.wait(3)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        print("ok", flush=True)
        os._exit(0)  # umockdev's thread would wait for its clients


if __name__ == "__main__":
    main()
