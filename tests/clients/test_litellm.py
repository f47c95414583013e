"""litellm: the OpenAI route and the Anthropic route."""

import json

import pytest

from tests.clients.plays import (
    BREAKS,
    CALL_ARGUMENTS,
    CALLS,
    CONCLUSION,
    GONE,
    LOST,
    OVERFLOW,
    TEXT,
    THINKS,
    THOUGHT,
    TOOLS,
    completion_tokens,
)
from tests.processes import messages

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def ask(scripted_url: str):
    def completion(text: str = "hi", **options):
        return litellm.completion(
            model="openai/tiny-qwen",
            api_base=scripted_url,
            api_key="none",
            max_retries=0,
            messages=[{"role": "user", "content": text}],
            **options,
        )

    return completion


def test_whole_and_streamed_answers(ask) -> None:
    whole = ask()
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (TEXT, "stop")
    assert whole.usage.completion_tokens == completion_tokens()
    assert whole.usage.prompt_tokens_details.cached_tokens == 2
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    # Without a usage chunk litellm would make the counts up.
    (usage,) = [c.usage for c in chunks if getattr(c, "usage", None)]
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, completion_tokens())


def test_calls_come_whole_and_in_parts(ask) -> None:
    whole = ask(CALLS, tools=TOOLS).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert [json.loads(c.function.arguments) for c in whole.message.tool_calls] == CALL_ARGUMENTS
    raw: dict[int, str] = {}
    reasons = []
    for chunk in ask(CALLS, tools=TOOLS, stream=True):
        reasons.append(chunk.choices[0].finish_reason)
        for part in chunk.choices[0].delta.tool_calls or ():
            raw[part.index] = raw.get(part.index, "") + (part.function.arguments or "")
    assert [json.loads(text) for text in raw.values()] == CALL_ARGUMENTS
    assert [r for r in reasons if r] == ["tool_calls"]


def test_thoughts_are_apart(ask) -> None:
    message = (
        ask(THINKS, reasoning_effort="high", allowed_openai_params=["reasoning_effort"]).choices[0].message
    )
    assert (message.reasoning_content, message.content) == (THOUGHT, CONCLUSION)


@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_is_recognised(ask, stream: bool) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        list(ask(OVERFLOW, stream=stream))


def test_errors_keep_class_and_message(ask) -> None:
    with pytest.raises(litellm.BadRequestError, match="n: "):
        ask(n=0)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/other",
            api_base=ask.__closure__[0].cell_contents,
            api_key="none",
            messages=[{"role": "user", "content": "hi"}],
        )
    with pytest.raises(Exception, match=GONE) as caught:
        ask(LOST)
    assert caught.value.status_code == 503
    with pytest.raises(Exception, match=GONE):
        list(ask(BREAKS, stream=True))


def test_the_anthropic_route(scripted_host: str) -> None:
    tools = [{"type": "function", "function": t["function"]} for t in TOOLS]
    answer = litellm.completion(
        model="anthropic/tiny-qwen",
        api_base=scripted_host,
        api_key="none",
        max_tokens=400,
        messages=[{"role": "user", "content": CALLS}],
        tools=tools,
    )
    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in calls] == CALL_ARGUMENTS


def test_tiny_answers(tiny_url: str) -> None:
    answer = litellm.completion(
        model="openai/tiny",
        api_base=tiny_url,
        api_key="none",
        messages=messages(2),
        temperature=0,
        max_tokens=60,
    )
    assert "4821" in answer.choices[0].message.content


def test_the_anthropic_route_streams_the_same_calls_and_knows_an_overflow(scripted_host: str) -> None:
    # Its bridge has dropped tool deltas of other servers (BerriAI/litellm#29491).
    route = {
        "model": "anthropic/tiny-qwen",
        "api_base": scripted_host,
        "api_key": "none",
        "max_tokens": 400,
        "stream": True,
    }
    chunks = list(litellm.completion(messages=[{"role": "user", "content": CALLS}], tools=TOOLS, **route))
    raw: dict[int, str] = {}
    for part in (p for c in chunks for p in c.choices[0].delta.tool_calls or ()):
        raw[part.index] = raw.get(part.index, "") + (part.function.arguments or "")
    assert [json.loads(text) for text in raw.values()] == CALL_ARGUMENTS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": OVERFLOW}], **route)
    with pytest.raises(Exception, match=GONE):
        list(litellm.completion(messages=[{"role": "user", "content": BREAKS}], **route))


def test_responses_and_text_completions(scripted_url: str) -> None:
    route = {"api_base": scripted_url, "api_key": "none"}
    answer = litellm.responses(model="openai/tiny-qwen", input="hi", **route)
    assert answer.output[0].content[0].text == TEXT
    assert answer.usage.output_tokens == completion_tokens()
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.responses(model="openai/tiny-qwen", input=OVERFLOW, **route)
    completed = litellm.text_completion(model="text-completion-openai/tiny-qwen", prompt="hi", **route)
    assert (completed.choices[0].text, completed.choices[0].finish_reason) == (TEXT, "stop")
