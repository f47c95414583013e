"""tiny with its whole old context baked: the same greedy tokens as with plain pages; and what Stats says."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("coremltools", reason="page programs are built with coremltools")

from backburner.attention.select import make_engine
from backburner.coreml.runtime import SimulatedRuntime
from backburner.engine.worker_link import greet
from backburner.transport import messages as m
from backburner.transport.tcp import listen
from backburner.worker.bake_share import Share
from backburner.worker.baker import BakeSettings
from backburner.worker.server import WorkerServer
from tests.host import generate_with_state, host, link_to, long_prompt, tiny, until

# tiny's pages have 64 positions here, so that a short suite has several baked pages.
BAKED_TOKENS = 128
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baked")


@contextlib.contextmanager
def baking_worker(folder: Path) -> Iterator[WorkerServer]:
    settings = BakeSettings(
        SimulatedRuntime(), Share(1.0, 1.0), BAKED_TOKENS, folder=folder, folder_bytes=2**30
    )
    server = WorkerServer(
        listen("127.0.0.1", 0), make_engine("baked-sim"), 2**30, "kitchen", ("baked-sim",), bake=settings
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)


@pytest.mark.parametrize("count", [33, 256])
def test_greedy_tokens_are_those_of_plain_pages(folder: Path, count: int) -> None:
    prompt = long_prompt()
    with host() as alone:
        expected, _, _ = generate_with_state(alone, prompt, count)
    with baking_worker(folder) as server, host(lambda: link_to(server)) as runner:
        bakery = server.bakery
        assert bakery is not None
        decoding = False

        def wait_until_baked(state) -> None:
            """Before the first token: all that is held in whole runs is baked."""
            nonlocal decoding
            if len(state.tokens) > len(prompt) and not decoding:
                decoding = True
                until(lambda: bakery.state().pages >= 2 * 2 or bakery.state().error != "", PATIENCE_S)

        found, _, _ = generate_with_state(runner, prompt, count, wait_until_baked)
        baked = bakery.state()
    assert baked.error == ""
    assert baked.share > 0.4, baked
    assert found == expected


def test_stats_tell_of_baking(folder: Path) -> None:
    with baking_worker(folder) as server:
        with host(lambda: link_to(server)) as runner:
            generate_with_state(runner, long_prompt(), 2)
        model = tiny().model
        until(lambda: server._serving is None)
        link = link_to(server)
        greet(link, model.geometry(64), model.attention_layers, b"model", "native")
        stats = link.exchange(m.Stats())
        link.close()
    assert isinstance(stats.bake, m.BakeState)
    assert stats.bake.bytes <= stats.used_bytes
