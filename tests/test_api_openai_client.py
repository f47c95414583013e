"""The official client, unchanged: answers, strictly assembled streams, and its error classes."""

import json
from collections.abc import Iterator

import openai
import pytest

from backburner.engine.request import GenerationRequest
from backburner.errors import BackburnerError, LinkClosed
from tests.api_support import HI, MODEL, listening
from tests.scripted_engine import Script, ScriptedEngine, says
from tests.test_api_cases import TOOLS, call_text

TEXT = "hello 🙂 world"


def script(request: GenerationRequest) -> Script:
    """max_tokens chooses the behaviour, so that one server does for all tests."""
    match request.max_tokens:
        case 401:
            return says(TEXT, fault_at=3, fault=LinkClosed("the worker is gone"))
        case 402:
            return says(TEXT, fault_at=0, fault=BackburnerError("a defect"))
        case 403:
            return says(TEXT, fault_at=0, fault=LinkClosed("the worker is gone"))
    return says(TEXT, cached_tokens=2)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[openai.OpenAI, ScriptedEngine]]:
    with listening(script) as (url, engine):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2, timeout=20), engine


@pytest.fixture
def client(served: tuple[openai.OpenAI, ScriptedEngine]) -> openai.OpenAI:
    return served[0]


def test_a_chat_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_a_chat_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage.completion_tokens == len(says(TEXT).tokens)


def test_the_strict_stream_helper_assembles_the_same_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=HI, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 0


def test_the_strict_stream_helper_assembles_calls_thoughts_and_scores() -> None:
    text = (
        "hm\n</think>\n\nLet me see.\n" + call_text(city="Oslo") + "\n" + call_text(city="Bergen", days="2")
    )
    with listening(says(text, token_delay_s=0.001)) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=20)
        with client.chat.completions.stream(
            model=MODEL, messages=HI, tools=TOOLS, reasoning_effort="high", logprobs=True
        ) as stream:
            kinds = [event.type for event in stream]
            choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning_content == "hm"
    arguments = [json.loads(call.function.arguments) for call in choice.message.tool_calls]
    assert arguments == [{"city": "Oslo"}, {"city": "Bergen", "days": 2}]
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert "".join(entry.token for entry in choice.logprobs.content).startswith("Let me see.")


def test_the_strict_stream_helper_keeps_choices_apart(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HI, n=2) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, TEXT, "stop"),
        (1, TEXT, "stop"),
    ]


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"])
    assert [(c.index, c.text) for c in answer.choices] == [(0, TEXT), (1, TEXT)]
    chunks = client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join(c.choices[0].text for c in chunks) == TEXT


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve("tiny-qwen").id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_bad_input_is_a_bad_request_error_with_code_and_param(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, n=0)
    assert caught.value.code == "invalid_value"
    assert caught.value.param == "n"


def test_an_overflow_is_a_bad_request_error_with_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_a_not_found_error_with_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=HI)
    assert caught.value.code == "model_not_found"


def test_a_failure_in_mid_stream_raises_with_the_message(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=401, stream=True)
    with pytest.raises(openai.APIError, match="the worker is gone") as caught:
        list(stream)
    assert caught.value.code == "link_closed"


def test_a_defect_is_not_retried(served: tuple[openai.OpenAI, ScriptedEngine]) -> None:
    client, engine = served
    engine.requests.clear()
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=MODEL, messages=HI, max_tokens=402)
    assert len(engine.requests) == 1


def test_a_lost_worker_is_a_503(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=HI, max_tokens=403)
    assert caught.value.status_code == 503
