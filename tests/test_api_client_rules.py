"""What clients need of a server, rule by rule from facts/clients.md: each has broken a client where it was not kept."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from backburner.api.settings import ApiSettings
from backburner.errors import (
    BackburnerError,
    ContextExceeded,
    EngineDead,
    HostFull,
    LinkClosed,
    ModelError,
)
from tests.api_support import (
    HI,
    MODEL,
    AsgiClient,
    asgi,
    both_ways,
    error_of,
    eventually,
    frames,
    listening,
    streamed_text,
)
from tests.scripted_engine import Script, says, tiny_tokenizer, tokens_of
from tests.test_api_cases import FORECAST, THINKS, TOOLS, call_text, replayed

CALLS = "Let me see.\n" + call_text(city="Oslo") + "\n" + call_text(city="Bergen", days="2")
THOUGHT = "hm\n</think>\n\nyes"
FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter"}

STREAMS: list[tuple[Script, dict[str, Any]]] = [
    (says("hello 🙂"), {}),
    (Script(), {}),
    (says("hello", cached_tokens=2), {"max_tokens": 1}),
    (says("abc"), {"stop": "b"}),
    (says(CALLS), {"tools": TOOLS}),
    (says(THOUGHT), THINKS),
    (says("hello"), {"n": 3}),
    (says("hello"), {"logprobs": True, "top_logprobs": 2}),
]
every_stream = pytest.mark.parametrize(("script", "fields"), STREAMS)


@every_stream
@pytest.mark.parametrize("usage", [False, True])
def test_each_frame_is_one_line_of_data_with_a_list_of_choices_and_the_end_is_done(
    script: Script, fields: dict[str, Any], usage: bool
) -> None:
    with asgi(script) as client:
        response = client.chat(stream=True, stream_options={"include_usage": usage}, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") and "\n" not in event for event in events[:-1])
    for frame in frames(response):
        assert isinstance(frame["choices"], list)
        assert {"id", "object", "created", "model"} <= frame.keys()


@every_stream
def test_the_role_comes_once_for_each_choice_and_first(script: Script, fields: dict[str, Any]) -> None:
    with asgi(script) as client:
        chunks = frames(client.chat(stream=True, **fields))
    for index in range(fields.get("n", 1)):
        deltas = [c["delta"] for f in chunks for c in f["choices"] if c["index"] == index]
        assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)


@every_stream
def test_each_choice_ends_with_one_known_reason_and_nothing_follows_it(
    script: Script, fields: dict[str, Any]
) -> None:
    with asgi(script) as client:
        chunks = frames(client.chat(stream=True, **fields))
        whole = client.chat(**fields).json()["choices"]
    for index in range(fields.get("n", 1)):
        reasons = [c["finish_reason"] for f in chunks for c in f["choices"] if c["index"] == index]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        assert reasons[-1] in FINISH_REASONS
        assert reasons[-1] == whole[index]["finish_reason"]


@every_stream
def test_the_usage_chunk_is_last_has_no_choices_and_says_what_a_whole_answer_says(
    script: Script, fields: dict[str, Any]
) -> None:
    with asgi(script) as client:
        chunks = frames(client.chat(stream=True, stream_options={"include_usage": True}, **fields))
        without = frames(client.chat(stream=True, **fields))
        usage = client.chat(**fields).json()["usage"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    assert not any("usage" in chunk for chunk in without)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == script.cached_tokens


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    with asgi(says("ABC", cached_tokens=2)) as client:
        one, three = (client.chat(n=n).json()["usage"] for n in (1, 3))
        texts = client.complete(prompt=["hello", "hello"], n=2).json()["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["prompt_tokens_details"] == one["prompt_tokens_details"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]
    assert texts["prompt_tokens"] == 2 * len(tokens_of("hello"))


def test_a_calls_first_delta_names_it_and_later_ones_only_add_arguments() -> None:
    with asgi(says(CALLS)) as client:
        chunks = frames(client.chat(stream=True, tools=TOOLS))
    parts = [p for f in chunks for c in f["choices"] for p in c["delta"].get("tool_calls", ())]
    seen: dict[int, list[dict[str, Any]]] = {}
    for part in parts:
        seen.setdefault(part["index"], []).append(part)
    assert list(seen) == [0, 1]
    ids = set()
    for first, *later in seen.values():
        assert first.keys() == {"index", "id", "type", "function"}
        assert first["type"] == "function"
        assert first["function"]["name"] == "forecast"
        assert isinstance(first["id"], str)
        assert first["id"]
        ids.add(first["id"])
        assert later
        assert all(p.keys() == {"index", "function"} and p["function"].keys() == {"arguments"} for p in later)
        joined = "".join(p["function"]["arguments"] for p in (first, *later))
        assert isinstance(json.loads(joined), dict)
    assert len(ids) == 2, "no id is used twice"


def test_ids_of_calls_are_new_in_each_answer() -> None:
    with asgi(says(CALLS)) as client:
        answers = [client.chat(tools=TOOLS).json()["choices"][0]["message"]["tool_calls"] for _ in range(2)]
    assert len({call["id"] for calls in answers for call in calls}) == 4


def test_calls_end_with_tool_calls_and_never_with_stop() -> None:
    with asgi(says(CALLS)) as client:
        choice = both_ways(client, tools=TOOLS)
        cut = both_ways(client, tools=TOOLS, max_tokens=len(tokens_of(CALLS)) - 1)
        plain = both_ways(client)
        named = both_ways(client, tools=TOOLS, tool_choice="auto")
    assert choice["finish_reason"] == named["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert cut["finish_reason"] == "length"
    assert plain["finish_reason"] == "stop", "without tools the same text is text"
    assert plain["message"]["content"] == CALLS


def test_a_message_of_calls_alone_has_null_content_and_each_call_a_type() -> None:
    with asgi(says(call_text(city="Oslo"))) as client:
        message = both_ways(client, tools=TOOLS)["message"]
    assert message["content"] is None
    assert [call["type"] for call in message["tool_calls"]] == ["function"]


def test_thoughts_are_reasoning_content_apart_from_the_content() -> None:
    with asgi(says(THOUGHT)) as client:
        message = both_ways(client, **THINKS)["message"]
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_fault_in_mid_stream_is_a_frame_with_an_error_object(path: str, n: int) -> None:
    with asgi(says("ABCDEF", fault_at=2, fault=LinkClosed("the worker is gone"))) as client:
        response = getattr(client, path)(stream=True, n=n)
    assert response.status_code == 200
    last = frames(response)[-1]
    assert last.keys() == {"error"}
    assert last["error"]["message"] == "the worker is gone"
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == "link_closed"
    assert "[DONE]" not in response.text


@pytest.mark.parametrize(
    ("fault", "status", "retries"),
    [
        (ContextExceeded("full"), 400, False),
        (HostFull("full"), 503, False),
        (ModelError("odd"), 500, False),
        (BackburnerError("odd"), 500, False),
        (EngineDead("gone"), 503, True),
        (LinkClosed("gone"), 503, True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_is_told_not_to_retry_where_that_cannot_help(
    fault: BackburnerError, status: int, retries: bool, stream: bool
) -> None:
    with asgi(says("ABC", fault_at=0, fault=fault)) as client:
        response = client.chat(stream=stream)
    if stream:  # the status is out already; a frame says the same
        assert frames(response)[-1]["error"]["message"] == str(fault)
        return
    error_of(response, status)
    assert ("retry-after" in response.headers) == retries
    would_retry = status >= 500 or status in (408, 409, 429)
    assert (response.headers.get("x-should-retry") == "false") == (would_retry and not retries)


def overflow(client: AsgiClient, ask: str, stream: bool) -> httpx.Response:
    long = "word " * 300
    if ask == "chat":
        return client.chat(messages=[{"role": "user", "content": long}], stream=stream)
    return client.complete(prompt=long, stream=stream)


@pytest.mark.parametrize("ask", ["chat", "complete"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_has_the_words_that_make_agents_compact(ask: str, stream: bool) -> None:
    with asgi(says("A"), ctx_size=64) as client:
        error = error_of(overflow(client, ask, stream), 400)
        assert not client.engine.requests, "nothing is cut to fit"
    count = error["n_prompt_tokens"]
    assert count > 300
    assert error["n_ctx"] == 64
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert error["message"] == (
        "context_length_exceeded: prompt is too long. This model's maximum context length is 64 tokens; "
        f"the request ({count} tokens) exceeds the available context size"
    )


def prompt_for(client: AsgiClient, messages: list[dict[str, Any]], **fields: Any) -> str:
    response = client.chat(messages=messages, **fields)
    assert response.status_code == 200, response.text
    return str(tiny_tokenizer().decode(list(client.engine.requests[-1].prompt)))


def test_unknown_fields_are_ignored_also_inside_messages_parts_tools_and_calls() -> None:
    with asgi(says("A")) as client:
        plain = prompt_for(client, replayed('{"city": "Oslo"}'), tools=TOOLS)
        odd = replayed('{"city": "Oslo"}')
        odd[0] = {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "annotations": []}
            ],
            "id": "m1",
        }
        odd[1] |= {
            "refusal": None,
            "audio": None,
            "annotations": [],
            "function_call": None,
            "provider": {"x": [1]},
        }
        odd[1]["tool_calls"][0] |= {"index": 0, "extra_content": {"google": {}}}
        odd[2] |= {"is_error": False}
        unknown = {
            "store": True,
            "metadata": {"a": "b"},
            "user": "u",
            "service_tier": "auto",
            "verbosity": "low",
        }
        unknown |= {
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "prediction": None,
            "web_search_options": {},
        }
        assert prompt_for(client, odd, tools=TOOLS, **unknown) == plain


def test_the_body_that_pi_sends_is_accepted() -> None:
    messages = replayed('{"city": "Oslo"}', None)
    messages[1]["reasoning_content"] = "because"
    tool = {"type": "function", "function": {**FORECAST["function"], "strict": False, "description": "d"}}
    with asgi(says("A")) as client:
        prompt = prompt_for(
            client,
            [{"role": "developer", "content": "be brief"}, *messages],
            model=MODEL,
            store=False,
            max_completion_tokens=99,
            reasoning_effort="medium",
            stream=True,
            stream_options={"include_usage": True},
            tools=[tool],
        )
        assert client.engine.requests[-1].max_tokens == 99
    assert "be brief" in prompt


def test_a_developer_message_reads_as_a_system_message() -> None:
    with asgi(says("A")) as client:
        prompts = [
            prompt_for(client, [{"role": r, "content": "be brief"}, *HI]) for r in ("developer", "system")
        ]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_content_may_be_a_list_of_text_parts_in_every_role(role: str) -> None:
    extra = {"tool_call_id": "c1"} if role == "tool" else {}
    before = replayed("{}")[:2] if role == "tool" else [] if role == "system" else HI
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    with asgi(says("A")) as client:
        prompts = [
            prompt_for(client, [*before, {"role": role, "content": content, **extra}, *HI])
            for content in (parts, "one two")
        ]
    assert prompts[0] == prompts[1]


def test_models_tell_the_effective_context_under_each_name_that_agents_read() -> None:
    with asgi(says("A"), ctx_size=100_000) as client:
        (entry,) = client.get("/v1/models").json()["data"]
        assert client.get(f"/v1/models/{MODEL}").json() == entry
    names = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens")
    assert [entry[name] for name in names] == [4096] * len(names)
    assert entry["meta"]["n_ctx"] == 4096
    assert (entry["id"], entry["object"]) == (MODEL, "model")
    assert isinstance(entry["created"], int)


def test_the_default_keep_alive_is_shorter_than_any_client_waits() -> None:
    assert ApiSettings("m", 1).keep_alive_s <= 10


def comments_before(response: httpx.Response, wanted: int) -> list[float]:
    """When each comment came, up to as many as wanted, in seconds from the first byte on."""
    start, times = time.monotonic(), []
    for line in response.iter_lines():
        if line.startswith(":"):
            times.append(time.monotonic() - start)
        if len(times) == wanted:
            break
    return times


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_keep_alives_go_by_the_clock_from_the_moment_of_queueing(path: str) -> None:
    # The engine is busy with another request for all that time, and tells nothing of this one.
    with listening(Script(hang_at=0), keep_alive_s=0.1) as (url, engine):
        busy = httpx.Client(timeout=20)
        body = {"messages": HI, "prompt": "hi", "stream": True}
        with busy.stream("POST", f"{url}/v1/{path}", json=body) as first:
            assert eventually(lambda: engine.running)
            with httpx.stream("POST", f"{url}/v1/{path}", json=body, timeout=5) as response:
                assert response.status_code == 200
                times = comments_before(response, 5)
            assert len(engine.requests) == 2
            assert engine.running == engine.requests[0].request_id
            first.close()
        busy.close()
    assert times[-1] < 2


def test_keep_alives_come_while_a_call_is_withheld() -> None:
    text = call_text(code="x" * 30)
    slow = Script(pieces=list(text), token_delay_s=0.01)
    with listening(slow, keep_alive_s=0.05) as (url, _):
        body = {"messages": HI, "stream": True, "tools": TOOLS}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=10) as response:
            lines = list(response.iter_lines())
    start = next(i for i, line in enumerate(lines) if '"tool_calls"' in line)
    assert sum(line.startswith(":") for line in lines[:start]) >= 3
    assert lines[-2:] == ["data: [DONE]", ""]


FAULTS: dict[str, tuple[Callable[[AsgiClient], httpx.Response], int]] = {
    "no JSON": (lambda c: c.raw(b"{"), 400),
    "NaN": (lambda c: c.raw(b'{"temperature":NaN}'), 400),
    "no messages": (lambda c: c.post("/v1/chat/completions", {}), 400),
    "a wrong type": (lambda c: c.chat(temperature="hot"), 400),
    "a field that is not supported": (lambda c: c.chat(best_of=2), 400),
    "a field that is not supported, streamed": (lambda c: c.chat(stream=True, best_of=2), 400),
    "a template that refuses": (lambda c: c.chat(chat_template_kwargs={"messages": []}), 400),
    "an overflow": (lambda c: overflow(c, "chat", False), 400),
    "an unknown model": (lambda c: c.chat(model="other"), 404),
    "an unknown model by name": (lambda c: c.get("/v1/models/other"), 404),
    "no such route": (lambda c: c.get("/v2/nothing"), 404),
    "a wrong method": (lambda c: c.get("/v1/chat/completions"), 405),
    "a wrong method for models": (lambda c: c.post("/v1/models", {}), 405),
    "a foreign host": (lambda c: c.get("/health", headers={"host": "evil.example"}), 403),
    "a foreign origin": (lambda c: c.get("/health", headers={"origin": "https://evil.example"}), 403),
    "another content type": (lambda c: c.raw(b"{}", content_type="text/plain"), 415),
    "a large body": (lambda c: c.raw(b" " * 20_000), 413),
    "bad UTF-8": (lambda c: c.raw(b"\xff"), 400),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_error_has_the_one_shape_that_clients_show(fault: str) -> None:
    ask, status = FAULTS[fault]
    with asgi(says("A"), ctx_size=64, max_body_bytes=10_000) as client:
        response = ask(client)
        assert not client.engine.requests
    error = error_of(response, status)
    assert error["type"] == "invalid_request_error"
    assert response.headers["content-type"] == "application/json"
    assert "detail" not in response.json()


def test_a_stream_may_be_joined_by_a_client_that_knows_only_content() -> None:
    with asgi(says("Let me see. 🙂")) as client:
        assert streamed_text(client.chat(stream=True, tools=TOOLS)) == "Let me see. 🙂"
