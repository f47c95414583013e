"""What TLS between paired machines costs a link: round trips of 16 bytes, bodies of 2.6 MB, and the handshake.

    python benchmarks/secure.py --json

Host and worker are two processes, each pinned to a core of its own. The same link without TLS runs in alternation.
"""

import json
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from harness import pin
from link import (
    BLOCK,
    BULK,
    PING,
    PUT,
    begin,
    dial,
    figures,
    free_address,
    listen,
    no_delay,
    serve_link,
    time_block,
)

from backburner.transport import secure
from backburner.transport.channel import SocketChannel
from backburner.transport.identity import KeyStore
from backburner.transport.link import BULK_BYTES, Link

HANDSHAKES = 20


def worker(where: Any, core: int, folder: str) -> None:
    """Serves one plain link, then callers over TLS; one thread each, one of them busy at a time."""
    pin(core)
    store = KeyStore(Path(folder))
    listener = listen(where)
    check = secure.doorkeeper(store)
    Thread(target=serve_link, args=(SocketChannel(no_delay(listener.accept()[0]), "host"),)).start()
    for _ in range(HANDSHAKES + 1):
        channel = check(SocketChannel(no_delay(listener.accept()[0]), "host"))
        Thread(target=serve_link, args=(channel,)).start()


def main() -> None:
    options, cores = begin(__doc__, blocks=10)
    with tempfile.TemporaryDirectory() as folder:
        host, other = KeyStore(Path(folder) / "host"), KeyStore(Path(folder) / "worker")
        host.trust("worker", "worker", other.identity().certificate)
        other.trust("host", "host", host.identity().certificate)
        where = free_address()
        process = get_context("spawn").Process(
            target=worker, args=(where, cores[-1], str(other.folder)), daemon=True
        )
        process.start()
        links = {"plain": Link(SocketChannel(dial(where), "worker"))}
        reach = secure.connector(*where, "worker", host)
        handshakes = []
        for _ in range(HANDSHAKES + 1):
            start = time.perf_counter()
            links["tls"] = Link(reach())
            handshakes.append((time.perf_counter() - start) * 1e3)
        times: dict[str, dict[str, list[float]]] = {
            name: {"ping": [], "bulk": [], "put": []} for name in links
        }
        for _ in range(options.blocks):
            for name, link in links.items():
                times[name]["ping"] += time_block(lambda link=link: link.exchange(PING), BLOCK)
                times[name]["bulk"] += time_block(lambda link=link: link.exchange(BULK), 10)
                times[name]["put"] += time_block(lambda link=link: link.exchange(PUT), 10)
        for link in links.values():
            link.close()
        process.join(10)
    result: dict[str, Any] = {
        name: figures(found["ping"], found["bulk"], found["put"]) for name, found in times.items()
    }
    result["handshake_ms"] = round(statistics.median(handshakes), 2)
    print(result, file=sys.stderr)
    if options.json:
        print(json.dumps(result | {"body_bytes": BULK_BYTES}))


if __name__ == "__main__":
    main()
