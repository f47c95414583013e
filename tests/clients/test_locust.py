"""locust: sixteen users for a minute get their own answers, and the server is no larger than before."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests.processes import ROOT, Server, environment, serve

# Not imported here: it would patch this process.
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("locust") is None, reason="locust is not installed"),
]

USERS = "16"


def load(server: Server, seconds: int) -> list[dict]:
    """What locust counted, for each kind of request. In a process of its own: it patches the standard library."""
    command = [sys.executable, "-m", "locust", "-f", "benchmarks/locustfile.py", "--host", server.url]
    options = ["--headless", "-u", USERS, "-r", USERS, "-t", f"{seconds}s", "--stop-timeout", "60", "--json"]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return list(json.loads(done.stdout))


def test_sixteen_users_for_a_minute_get_their_own_answers_and_nothing_grows() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from clients import MiB, use_of

    with serve("--device", "loopback") as server:
        # Threads and buffers that are made once are no leak.
        load(server, 5)
        server.until_idle()
        before = use_of(server.pid)
        counted = load(server, 60)
        server.until_idle()
        time.sleep(1)
        after = use_of(server.pid)
        assert server.health()["status"] == "ok"
    assert sum(kind["num_failures"] for kind in counted) == 0
    # A stream that is left, each endpoint whole, and each streamed.
    assert {kind["name"].split()[1] for kind in counted if kind["num_requests"]} == {
        "left",
        "whole",
        "streamed",
    }
    assert len({kind["name"].split()[0] for kind in counted}) == 4
    assert after.memory_bytes - before.memory_bytes < 100 * MiB
    assert after.threads <= before.threads + 2
    assert after.files <= before.files + 2
