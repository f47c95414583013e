"""A caller that cannot be taken does not end a worker; only our own close does."""

import errno
import os
import socket
import threading
from typing import Any

import pytest

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.engine.worker_link import greet
from backburner.errors import LinkClosed
from backburner.transport import tcp
from backburner.transport.link import Link
from backburner.worker.server import WorkerServer

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim=64, page_tokens=32, dtype="float32", scale=0.125)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class RefusesOptions(socket.socket):
    """As on macOS when the peer has reset the connection."""

    def setsockopt(self, *_: Any) -> None:
        raise os_error(errno.EINVAL)


class FaultyListener(socket.socket):
    """A listening socket whose first accepts go wrong."""

    faults: list[Any]

    def accept(self) -> tuple[socket.socket, Any]:
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, OSError):
            raise fault
        sock, address = super().accept()
        return (fault(fileno=sock.detach()) if fault else sock), address


def faulty_listener(faults: list[Any]) -> tcp.Listener:
    sock = FaultyListener(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    sock.faults = faults
    return tcp.Listener(sock)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNABORTED, errno.EINVAL])
def test_a_failed_accept_does_not_end_the_worker(number: int, caplog: pytest.LogCaptureFixture) -> None:
    check_that_the_next_host_is_served([os_error(number)], aborted=0)
    assert os.strerror(number) in caplog.text


def test_a_caller_that_hung_up_at_once_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    check_that_the_next_host_is_served([RefusesOptions], aborted=1)
    assert "could not be taken" in caplog.text


def check_that_the_next_host_is_served(faults: list[Any], aborted: int) -> None:
    server = WorkerServer(faulty_listener(faults), NumpyEngine(), 2**20, "test", ("numpy",))
    port = int(server.address.rpartition(":")[2])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for _ in range(aborted):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as caller:
            assert caller.recv(1) == b"", "a caller that is not taken is hung up on"
    link = Link(tcp.connect("127.0.0.1", port))
    assert greet(link, GEOMETRY, (3,), b"model", "numpy").name == "test"
    assert not faults
    link.close()
    server.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_worker_that_hangs_up_at_once_is_a_closed_link(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = tcp.listen()
    create_connection = socket.create_connection

    def refusing(*arguments: Any, **options: Any) -> socket.socket:
        return RefusesOptions(fileno=create_connection(*arguments, **options).detach())

    monkeypatch.setattr(socket, "create_connection", refusing)
    with pytest.raises(LinkClosed, match="hung up at once"):
        tcp.connect("127.0.0.1", listener.port)
    listener.close()
