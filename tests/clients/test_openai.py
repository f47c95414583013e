"""openai 3.x against a real process; its exact streams and errors are in tests/test_api_openai_client.py."""

import json

import pytest

from tests.clients.plays import TOOLS
from tests.processes import MODEL, messages

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.clients
ASKED = {"model": MODEL, "messages": messages(2), "temperature": 0, "max_tokens": 60}


@pytest.fixture(scope="module")
def client(tiny_url: str):
    return openai.OpenAI(base_url=tiny_url, api_key="none", max_retries=0, timeout=60)


def test_it_is_the_third_generation() -> None:
    assert int(openai.__version__.split(".")[0]) >= 3


def test_a_strict_stream_is_the_whole_answer(client) -> None:
    whole = client.chat.completions.create(**ASKED)
    with client.chat.completions.stream(**ASKED, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert "4821" in whole.choices[0].message.content
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens > 0
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens > 0


def test_a_strict_stream_assembles_a_call_of_tiny(client) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Will it rain in Oslo?"}],
        tools=TOOLS,
        tool_choice="required",
        temperature=0,
        max_tokens=100,
    ) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "forecast"
    assert isinstance(json.loads(choice.message.tool_calls[0].function.arguments), dict)


def test_a_schema_is_parsed_into_its_class(client) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        city: str
        age: int

    asked = [{"role": "user", "content": "Return JSON with name Maria, city Oslo and age 31."}]
    answer = client.chat.completions.parse(
        model=MODEL, messages=asked, temperature=0, max_tokens=200, response_format=Person
    )
    assert isinstance(
        answer.choices[0].message.parsed, Person
    )  # tiny gets the city wrong, which is its own affair


def test_responses_stream_ends_with_the_answer(client) -> None:
    with client.responses.stream(
        model=MODEL, input=messages(2), temperature=0, max_output_tokens=60
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == text
    assert "4821" in text
    assert final.usage.output_tokens > 0
