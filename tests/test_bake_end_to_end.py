"""tiny with its whole old context baked: the same greedy tokens as with plain pages; and what Stats says."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from backburner.attention.select import make_engine
from backburner.coreml.runtime import SimulatedRuntime
from backburner.engine.worker_link import greet
from backburner.transport import messages as m
from backburner.transport.link import Link
from backburner.transport.tcp import connect, listen
from backburner.worker.bake_share import Share, read_share
from backburner.worker.baker import BakeSettings
from backburner.worker.server import WorkerServer
from tests import processes
from tests.coreml_support import needs_coremltools
from tests.host import generate_with_state, host, link_to, long_prompt, running, tiny, until
from tests.processes import run, worker

pytestmark = needs_coremltools

# tiny's pages have 64 positions here, so that a short suite has several baked pages.
BAKED_TOKENS = 128
PATIENCE_S = 300.0
PROMPT = long_prompt()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baked")


@contextlib.contextmanager
def baking_worker(folder: Path) -> Iterator[WorkerServer]:
    settings = BakeSettings(
        SimulatedRuntime(), Share(1.0, 1.0), BAKED_TOKENS, folder=folder, folder_bytes=2**30
    )
    listener, engine = listen("127.0.0.1", 0), make_engine("baked-sim")
    with running(WorkerServer(listener, engine, 2**30, "kitchen", ("baked-sim",), bake=settings)) as server:
        yield server


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


def test_bench_bake_writes_the_share_where_a_worker_reads_it(tmp_path: Path) -> None:
    shape = ("--attention", "4,2,64", "--page-tokens", "64", "--bake-tokens", "128", "--dtype", "bfloat16")
    done = run(
        *(
            "bench",
            "bake",
            "--engine",
            "baked-sim",
            "--bake-dir",
            str(tmp_path),
            "--runs",
            "2",
            "--rounds",
            "1",
        ),
        *shape,
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "share for one token" in done.stdout
    share = read_share(tmp_path, "baked-sim", make_engine("auto").name)
    assert f"share for one token {share.one:.2f}, for more {share.many:.2f}" in done.stdout


def test_a_killed_worker_finds_its_baked_pages_again(tmp_path: Path) -> None:
    flags = (
        "--engine",
        "baked-sim",
        "--bake-tokens",
        "128",
        "--bake-share",
        "1",
        "--bake-dir",
        str(tmp_path),
    )
    reused = []
    for _ in range(2):
        with (
            worker(0, *flags) as (process, port),
            host(lambda port=port: Link(connect("127.0.0.1", port))) as runner,
        ):

            def state(port=port, runner=runner) -> m.BakeState | None:
                connection = runner.workers[0].connection
                return connection.link.exchange(m.Stats()).bake

            baked = []

            def wait(sequence, state=state, baked=baked) -> None:
                if len(sequence.tokens) > len(PROMPT) and not baked:
                    processes.until(lambda: state().pages >= 4 or state().error, PATIENCE_S)
                    baked.append(state())

            generate_with_state(runner, PROMPT, 2, wait)
            process.signal(signal.SIGKILL)  # baking or not
            process.wait()
        assert baked[0].error == ""
        reused.append(baked[0].reused)
    assert reused[0] == 0
    assert reused[1] >= 4
