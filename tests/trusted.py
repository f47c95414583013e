"""Folders with keys that know each other, and workers that let in only whom they know."""

import contextlib
import socket
import time
from contextlib import contextmanager

import pytest

from backburner.attention.numpy_engine import NumpyEngine
from backburner.transport import codec, secure
from backburner.transport import messages as m
from backburner.transport.identity import KeyStore
from backburner.transport.link import Link
from backburner.transport.tcp import listen_unsecured
from backburner.worker.server import WorkerServer
from tests.host import port_of, running

LONG_S = 20.0


def soon() -> float:
    return time.monotonic() + LONG_S


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Folders with keys, made once."""
    folder = tmp_path_factory.mktemp("keys")
    stores = {name: KeyStore(folder / name) for name in ("host", "worker", "stranger", "other")}
    for store in stores.values():
        store.identity()
    paired(stores["host"], stores["worker"])
    return stores


def paired(host: KeyStore, worker: KeyStore) -> None:
    host.trust("the worker", "worker", worker.identity().certificate)
    worker.trust("the host", "host", host.identity().certificate)


@contextmanager
def working(store: KeyStore):
    """A worker that lets in whom the store trusts, on a free port."""
    listener, check = listen_unsecured("127.0.0.1", 0), secure.doorkeeper(store)
    with running(
        WorkerServer(listener, NumpyEngine(), 2**28, "test", ("numpy",), doorkeeper=check)
    ) as server:
        yield server


def reach(server: WorkerServer, store: KeyStore) -> Link:
    return Link(secure.connector("127.0.0.1", port_of(server), "test", store)(), LONG_S)


def answered(server: WorkerServer, data: bytes) -> bytes:
    """All that the worker says to these bytes."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=LONG_S) as sock:
        sock.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(4096):
                got += piece
        return got


def certificate(keys, name: str) -> bytes:
    return keys[name].identity().certificate


def hello_bytes() -> bytes:
    geometry = m.PageGeometry(4, 2, 64, 32, "float32", 0.125)
    return b"".join(codec.encode(m.Hello(1, "backburner", "stranger", b"m", geometry, (3,), "numpy"), 1))
