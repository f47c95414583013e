"""What a link costs over bare sockets: round trips of 16 bytes, and one-way bodies of 2.6 MB.

    python benchmarks/link.py --json

Host and worker are two processes, each pinned to a core of its own (and, under `one_core`, to the same one:
there no time passes but that of code and kernel; missing where the system pins nothing). A bare blocking
socket pair that moves the same bytes runs in alternation, so that whatever else the machine does falls on both,
and so does a link that does not look for bytes before it blocks (`blocking_ratio`: the cost of our code alone).
A round trip of the link includes encoding, checks of every field and decoding on both sides. A 2.6 MB body
includes the copy into and out of the kernel, the fresh receive buffer, the decoded tensor and the Pong that ends
it; no check, as for queries (PutPage bodies are checked: `put_bytes_per_s` has them, with xxh64 on both sides).
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import numpy as np
from harness import CAN_PIN, pin, usable_cores

from backburner.errors import LinkClosed
from backburner.transport import codec, tcp
from backburner.transport import messages as m
from backburner.transport.channel import SocketChannel
from backburner.transport.link import BULK_BYTES, PROBE_BYTES, Link
from backburner.transport.peer import Peer

BLOCK = 200  # round trips before the other side's turn
PING = m.Ping(echo=True, payload=np.zeros(PROBE_BYTES, np.uint8))
# Ones: memory that nobody has written is one page of zeros again and again, and a copy of it reads the cache only.
BULK = m.Ping(echo=False, payload=np.ones(BULK_BYTES, np.uint8))
ROWS = np.ones((4, BULK_BYTES // (2 * 2 * 4 * 256), 256), np.float16)
PUT = m.PutPage(bytes(16), 0, 0, ROWS, ROWS)


def serve_link(channel: SocketChannel) -> None:
    peer = Peer(channel)
    try:
        while True:
            tag, request = peer.receive(60)
            match request:
                case m.Ping():
                    peer.reply(tag, m.Pong(request.payload if request.echo else None))
                case m.PutPage():
                    peer.reply(tag, m.PageAck(request.key, request.layer, request.k.shape[1], False))
    except LinkClosed:
        pass


def serve_bare(sock: socket.socket, size: int) -> None:
    """Echoes `size` bytes at a time."""
    while data := sock.recv(size, socket.MSG_WAITALL):
        sock.sendall(data)


def worker(where: Any, core: int) -> None:
    """Serves two links and a bare socket to whoever connects; one thread each, one of them busy at a time."""
    from threading import Thread

    pin(core)
    listener = listen(where)
    threads = [
        Thread(target=serve_link, args=(SocketChannel(no_delay(listener.accept()[0]), "host"),)),
        Thread(target=serve_link, args=(SocketChannel(no_delay(listener.accept()[0]), "host", poll_s=0),)),
        Thread(target=serve_bare, args=(no_delay(listener.accept()[0]), frame_bytes())),
    ]
    for thread in threads:
        thread.start()


def listen(where: Any) -> socket.socket:
    if isinstance(where, str):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    listener.listen()
    return listener


def no_delay(sock: socket.socket) -> socket.socket:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def dial(where: Any) -> socket.socket:
    for _ in range(200):
        sock = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
        try:
            sock.connect(where)
        except OSError:
            sock.close()
            time.sleep(0.05)
        else:
            return no_delay(sock)
    raise SystemExit("the worker process did not come up")


def frame_bytes() -> int:
    """The size of a Ping's frame: the bare pair moves the same number of bytes."""
    return sum(len(part) for part in codec.encode(PING, 1))


def time_block(call: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def measure(where: Any, blocks: int, core: int) -> dict[str, float]:
    """Medians of all ways over one kind of socket, the worker on the given core."""
    process = get_context("spawn").Process(target=worker, args=(where, core), daemon=True)
    process.start()
    channel = SocketChannel(dial(where), "worker")
    blocking = Link(SocketChannel(dial(where), "worker", poll_s=0))
    bare = dial(where)
    link = Link(channel)
    data = bytes(frame_bytes())

    def bare_round_trip() -> None:
        bare.sendall(data)
        bare.recv(len(data), socket.MSG_WAITALL)

    linked: list[float] = []
    plain: list[float] = []
    ratios, blocking_ratios = [], []
    time_block(lambda: link.exchange(PING), BLOCK)
    for _ in range(blocks):
        ours, bares = time_block(lambda: link.exchange(PING), BLOCK), time_block(bare_round_trip, BLOCK)
        slow = time_block(lambda: blocking.exchange(PING), BLOCK)
        ratios.append(statistics.median(ours) / statistics.median(bares))
        blocking_ratios.append(statistics.median(slow) / statistics.median(bares))
        linked += ours
        plain += bares
    bulk = time_block(lambda: link.exchange(BULK), 60)
    put = time_block(lambda: link.exchange(PUT), 60)
    link.close()
    blocking.close()
    bare.close()
    process.join(10)
    return figures(linked, bulk, put) | {
        "bare_p50_us": round(statistics.median(plain), 1),
        "ratio": round(statistics.median(ratios), 2),
        "blocking_ratio": round(statistics.median(blocking_ratios), 2),
    }


def figures(ping_us: list[float], bulk_us: list[float], put_us: list[float]) -> dict[str, float]:
    """What is told of a link: its round trips, and how fast bodies go, unchecked and checked."""
    return {
        "p50_us": round(statistics.median(ping_us), 1),
        "p90_us": round(statistics.quantiles(ping_us, n=10)[-1], 1),
        "bytes_per_s": round(BULK_BYTES / statistics.median(bulk_us) * 1e6),
        "put_bytes_per_s": round(BULK_BYTES / statistics.median(put_us) * 1e6),
    }


def free_address() -> tuple[str, int]:
    listener = tcp.listen()
    listener.close()
    return "127.0.0.1", listener.port


def begin(doc: str | None, blocks: int) -> tuple[argparse.Namespace, list[int]]:
    """The command line's options, and all usable cores; from here on this process keeps to the first."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--blocks", type=int, default=blocks, help=f"of {BLOCK} round trips each")
    options = parser.parse_args()
    cores = usable_cores()
    pin(cores[0])
    return options, cores


def main() -> None:
    options, cores = begin(__doc__, blocks=25)
    found = {"tcp": measure(free_address(), options.blocks, cores[-1])}
    if CAN_PIN:
        found["one_core"] = measure(free_address(), options.blocks, cores[0])
    with tempfile.TemporaryDirectory() as folder:
        found["unix"] = measure(os.path.join(folder, "link"), options.blocks, cores[-1])
    for name, row in found.items():
        print(f"{name}:", ", ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr)
    if options.json:
        print(json.dumps(found.pop("tcp") | {"body_bytes": BULK_BYTES} | found))


if __name__ == "__main__":
    main()
