"""Every thread of ours that uses an attention engine frees what the engine keeps for it, as its last act."""

import threading

import mlx.core as mx
import numpy as np
import pytest

from backburner.attention.mlx_engine import MlxEngine
from backburner.attention.numpy_engine import NumpyEngine
from backburner.transport.tcp import listen
from backburner.worker.server import WorkerServer
from tests.host import generate, host, link_to, long_prompt


def test_the_mover_and_the_workers_sessions_leave_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(NumpyEngine, "leave_thread", lambda _: left.append(threading.current_thread().name))
    server = WorkerServer(listen(), NumpyEngine(), 2**28, "test", ("numpy",))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with host(lambda: link_to(server), engine="numpy") as runner:
        generate(runner, long_prompt(), 1)
        session = next(t for t in threading.enumerate() if t.name.startswith("host 127.0.0.1"))
        server.close()  # under a live session: the server's end waits for the session's
        thread.join(10)
        assert not session.is_alive()
    assert sorted(left) == [session.name, "mover"]


def test_the_mlx_engine_clears_the_streams_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []
    clear_streams = mx.clear_streams

    def counted() -> None:
        cleared.append(threading.current_thread().name)
        clear_streams()

    monkeypatch.setattr(mx, "clear_streams", counted)
    sums: list[float] = []

    def work() -> None:
        sums.append(mx.array(np.ones(4, np.float32)).sum().item())
        MlxEngine().leave_thread()

    thread = threading.Thread(target=work, name="some thread")
    thread.start()
    thread.join(10)
    assert (sums, cleared) == ([4.0], ["some thread"])
