"""The embedded model says what it said when it was released: alone, with a worker, and streamed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from backburner.model.load import TINY
from tests.host import generate, host, link_to, serving, tokenizer
from tests.processes import Server, serve

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "tiny.json").read_text())
CASES = ANSWERS["cases"]


def prompt_of(case: dict[str, Any]) -> list[int]:
    return list(
        tokenizer().apply_chat_template(
            case["messages"],
            tools=case.get("tools"),
            add_generation_prompt=True,
            enable_thinking=case.get("thinking", False),
        )
    )


def test_the_files_are_the_released_ones() -> None:
    """scripts/train_tiny/export.py prints these hashes; the model card has them."""
    found = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(TINY.iterdir()) if p.is_file()
    }
    assert found == ANSWERS["sha256"]
    assert sum(p.stat().st_size for p in TINY.iterdir()) <= 12_000_000
    card = (Path(__file__).parent.parent / "docs" / "tiny-model.md").read_text()
    assert all(digest in card for digest in found.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_answers_alone_as_released(case: dict[str, Any]) -> None:
    with host() as runner:
        tokens, _ = generate(runner, prompt_of(case), len(case["tokens"]))
    assert tokens == case["tokens"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_answers_with_a_worker_as_released(case: dict[str, Any]) -> None:
    with serving(model=("tiny", TINY)) as server, host(lambda: link_to(server), split_layer=4) as runner:
        tokens, _ = generate(runner, prompt_of(case), len(case["tokens"]))
    assert tokens == case["tokens"]


@pytest.fixture(scope="module")
def server() -> Any:
    with serve("--device", "loopback") as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_answers_streamed_over_http_as_released(server: Server, case: dict[str, Any]) -> None:
    stream = server.client().chat.completions.create(
        model="tiny",
        messages=case["messages"],
        tools=case.get("tools") or [],
        stream=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": case.get("thinking", False)}},
    )
    content, calls, reasoning = "", "", ""
    for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            assert call.function is not None
            calls += (call.function.name or "") + (call.function.arguments or "")
    assert (content, calls, reasoning) == (case["content"], case["calls"], case["reasoning"])
