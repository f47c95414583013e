"""The two servers that every client talks to: a real process with tiny, and a script for exact streams.

The packages are many and heavy: `make test-clients` installs them into an environment of their own and runs this folder
only. The default suite does not collect it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api_support import listening
from tests.clients.plays import play
from tests.processes import Server, serve

# Neither prices nor traces are fetched from or sent to anybody.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"


def pytest_configure(config: pytest.Config) -> None:
    # Of pytest-asyncio, which langchain's suite brings and counts on.
    if hasattr(config.option, "asyncio_mode"):
        config.option.asyncio_mode = "auto"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = "clients" in config.getoption("markexpr") or any("clients" in a for a in config.args)
    return None if wanted else True


@pytest.fixture(scope="session")
def served() -> Iterator[Server]:
    """`backburner serve` with tiny and a worker in a second process."""
    with serve("--device", "loopback") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_url(served: Server) -> str:
    return f"{served.url}/v1"


@pytest.fixture(scope="session")
def scripted_host() -> Iterator[str]:
    with listening(play) as (url, _):
        yield url


@pytest.fixture(scope="session")
def scripted_url(scripted_host: str) -> str:
    return f"{scripted_host}/v1"
