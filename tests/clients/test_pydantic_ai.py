"""pydantic-ai: its agent's loop, whole and streamed, and its errors."""

import json
from typing import Any

import pytest

from tests.clients.plays import (
    BREAKS,
    CALL_ARGUMENTS,
    CALLS,
    GONE,
    LOST,
    OVERFLOW,
    RESULT,
    TEXT,
    completion_tokens,
    forecast_into,
)
from tests.processes import FACT, QUESTION

ai = pytest.importorskip("pydantic_ai")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")
pytestmark = pytest.mark.clients


def model(url: str, name: str):
    # Without retries of the client below it, a 503 is seen at once.
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    return models.OpenAIChatModel(name, provider=providers.OpenAIProvider(openai_client=client))


def test_an_answer_and_its_usage(scripted_url: str) -> None:
    result = ai.Agent(model(scripted_url, "tiny-qwen")).run_sync("hi")
    assert result.output == TEXT
    usage = result.usage
    assert usage.output_tokens == completion_tokens()
    assert usage.cache_read_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(scripted_url: str, stream: bool) -> None:
    called: list[dict[str, Any]] = []
    agent = ai.Agent(model(scripted_url, "tiny-qwen"), tools=[forecast_into(called)])
    parts = []

    async def handler(_context, events) -> None:
        parts.extend([event async for event in events])

    # Its run_stream() would end with the text before the calls: to it, that is the answer.
    result = agent.run_sync(CALLS, event_stream_handler=handler if stream else None)
    assert result.output == RESULT
    assert bool(parts) == stream
    assert sorted(called, key=json.dumps) == sorted(CALL_ARGUMENTS, key=json.dumps)


def test_errors_keep_status_and_message(scripted_url: str) -> None:
    agent = ai.Agent(model(scripted_url, "tiny-qwen"))
    for say, status, text in ((OVERFLOW, 400, "maximum context length"), (LOST, 503, GONE)):
        with pytest.raises(ai.ModelHTTPError, match=text) as caught:
            agent.run_sync(say)
        assert caught.value.status_code == status
    with pytest.raises(Exception, match=GONE):
        list(agent.run_stream_sync(BREAKS).stream_text())


def test_tiny_answers(tiny_url: str) -> None:
    agent = ai.Agent(
        model(tiny_url, "tiny"), system_prompt=FACT, model_settings={"temperature": 0, "max_tokens": 60}
    )
    assert "4821" in agent.run_sync(QUESTION).output
