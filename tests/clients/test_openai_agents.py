"""openai-agents: a tool loop over chat completions and over responses, scripted and with tiny."""

import asyncio
import json
from typing import Any

import pytest

from tests.clients.plays import CALL_ARGUMENTS, CALLS, GONE, LOST, RESULT, forecast_into

agents = pytest.importorskip("agents")
openai = pytest.importorskip("openai")
pytestmark = pytest.mark.clients
KINDS = ("OpenAIChatCompletionsModel", "OpenAIResponsesModel")


def model(kind: str, url: str, name: str):
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    return getattr(agents, kind)(model=name, openai_client=client)


def tool(called: list[dict[str, Any]], name: str = "forecast"):
    return agents.function_tool(
        forecast_into(called),
        name_override=name,
        description_override="Get the weather in a city.",
        strict_mode=False,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(scripted_url: str, kind: str, stream: bool) -> None:
    called: list[dict[str, Any]] = []
    agent = agents.Agent(
        name="a",
        model=model(kind, scripted_url, "tiny-qwen"),
        tools=[tool(called)],
        model_settings=agents.ModelSettings(include_usage=True),
    )

    async def run() -> Any:
        if not stream:
            return await agents.Runner.run(agent, CALLS)
        running = agents.Runner.run_streamed(agent, CALLS)
        async for _ in running.stream_events():
            pass
        return running

    result = asyncio.run(run())
    assert result.final_output == RESULT
    assert sorted(called, key=json.dumps) == sorted(CALL_ARGUMENTS, key=json.dumps)
    assert result.context_wrapper.usage.requests == 2
    assert result.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_worker_is_an_error_with_its_message(scripted_url: str, kind: str) -> None:
    agent = agents.Agent(name="a", model=model(kind, scripted_url, "tiny-qwen"))
    with pytest.raises(openai.InternalServerError, match=GONE):
        agents.Runner.run_sync(agent, LOST)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_loop_with_tiny(tiny_url: str, kind: str) -> None:
    called: list[dict[str, Any]] = []
    agent = agents.Agent(
        name="a",
        model=model(kind, tiny_url, "tiny"),
        tools=[tool(called, "get_weather")],
        # Asked for once; the loop then leaves the choice to the model.
        model_settings=agents.ModelSettings(temperature=0, max_tokens=100, tool_choice="required"),
    )
    result = agents.Runner.run_sync(agent, "What is the weather in Oslo?", max_turns=6)
    assert called
    assert isinstance(called[0]["city"], str)
    assert result.final_output
