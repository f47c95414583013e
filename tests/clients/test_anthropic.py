"""anthropic against a real process and against exact streams."""

import json

import pytest

from tests.clients.plays import BREAKS, CALL_ARGUMENTS, CALLS, GONE, OVERFLOW, RESULT, SCHEMA, TEXT
from tests.processes import FACT, FILLER, MODEL, QUESTION, Server

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.clients
TOOLS = [{"name": "forecast", "description": "The weather to come.", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def tiny(served: Server):
    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def exact(scripted_host: str):
    return anthropic.Anthropic(base_url=scripted_host, api_key="none", max_retries=0, timeout=30)


def test_tiny_answers_and_counts_the_same_tokens(tiny) -> None:
    asked = {
        "model": MODEL,
        "system": FACT + FILLER * 2,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    answer = tiny.messages.create(**asked, max_tokens=60, extra_body={"temperature": 0})
    with tiny.messages.stream(**asked, max_tokens=60, extra_body={"temperature": 0}) as stream:
        streamed = stream.get_final_message()
    assert "4821" in answer.content[0].text
    assert streamed.content[0].text == answer.content[0].text
    assert streamed.stop_reason == answer.stop_reason == "end_turn"
    usage = answer.usage
    counted = tiny.messages.count_tokens(**asked).input_tokens
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_a_tool_loop(exact) -> None:
    conversation = [{"role": "user", "content": CALLS}]
    with exact.messages.stream(
        model="tiny-qwen", max_tokens=400, messages=conversation, tools=TOOLS
    ) as stream:
        raw: dict[int, str] = {}
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                raw[event.index] = raw.get(event.index, "") + event.delta.partial_json
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [json.loads(text) for text in raw.values()] == CALL_ARGUMENTS
    uses = [block for block in message.content if block.type == "tool_use"]
    assert [block.input for block in uses] == CALL_ARGUMENTS
    conversation += [
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "rain"} for b in uses],
        },
    ]
    answer = exact.messages.create(model="tiny-qwen", max_tokens=100, messages=conversation, tools=TOOLS)
    assert answer.content[0].text == RESULT


def test_errors_keep_their_message(exact) -> None:
    def ask(text: str, **options):
        return exact.messages.create(
            model="tiny-qwen", max_tokens=100, messages=[{"role": "user", "content": text}], **options
        )

    assert ask("hi").content[0].text == TEXT
    with pytest.raises(anthropic.APIError, match=GONE):
        list(ask(BREAKS, stream=True))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(OVERFLOW)
    with pytest.raises(anthropic.NotFoundError):
        exact.messages.create(model="other", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
