"""llm, from its command line, as a person would use it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.plays import BREAKS, CALLS, GONE, OVERFLOW, RESULT, TEXT
from tests.processes import FACT, QUESTION

pytest.importorskip("llm")
pytestmark = pytest.mark.clients

MODELS = """
- model_id: exact
  model_name: tiny-qwen
  api_base: {scripted}
  supports_tools: true
  supports_schema: true
- model_id: real
  model_name: tiny
  api_base: {tiny}
  supports_tools: true
  supports_schema: true
"""
FORECAST = """
def forecast(city: str, days: int = 1, code: str = "") -> str:
    "The weather to come."
    return f"rain in {city}"
"""
Llm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, scripted_url: str, tiny_url: str) -> Llm:
    folder: Path = tmp_path_factory.mktemp("llm")
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(scripted=scripted_url, tiny=tiny_url))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments, "--key", "none"],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, "LLM_USER_PATH": str(folder)},
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_an_answer(llm: Llm, how: tuple[str, ...]) -> None:
    done = llm("-m", "exact", "hi", "--usage", *how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == TEXT
    assert "output" in done.stderr


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_a_tool_loop(llm: Llm, how: tuple[str, ...]) -> None:
    done = llm("-m", "exact", CALLS, "--functions", FORECAST, "--td", *how)
    assert done.returncode == 0, done.stderr
    assert RESULT in done.stdout
    assert "rain in Köln" in done.stderr
    assert "rain in Oslo" in done.stderr


def test_errors_keep_their_message(llm: Llm) -> None:
    broken = llm("-m", "exact", BREAKS)
    assert broken.returncode != 0
    assert GONE in broken.stderr
    full = llm("-m", "exact", OVERFLOW)
    assert full.returncode != 0
    assert "maximum context length is 4096 tokens" in full.stderr


def test_tiny_answers(llm: Llm) -> None:
    done = llm("-m", "real", QUESTION, "--system", FACT, "-o", "temperature", "0", "-o", "max_tokens", "60")
    assert done.returncode == 0, done.stderr
    assert "4821" in done.stdout


def test_tiny_fills_a_schema(llm: Llm) -> None:
    question = "Return JSON with name Maria, city Oslo and age 31."
    options = ("-o", "temperature", "0", "-o", "max_tokens", "200")
    done = llm("-m", "real", question, "--schema", "name, city, age int", *options)
    assert done.returncode == 0, done.stderr
    filled = json.loads(done.stdout)
    assert {name: type(value) for name, value in filled.items()} == {"name": str, "city": str, "age": int}
