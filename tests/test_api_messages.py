"""Anthropic's Messages API: what its client assembles, what its wire says, and what a conversation becomes."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.api.messages.content import SIGNATURE
from backburner.engine.request import GenerationRequest
from backburner.errors import BackburnerError, ContextExceeded, EngineDead, HostFull, LinkClosed, QueueFull
from tests.api_support import HI, MODEL, AsgiClient, asgi, eventually, listening
from tests.processes import MODEL as TINY
from tests.processes import messages, serve
from tests.scripted_engine import Script, ScriptedEngine, says, tiny_tokenizer

TEXT = "hello 🙂 world"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
THOUGHT = "So.\n</think>\n\nI look.\n\n" + CALL + "\n" + CALL
THINKING = {"type": "enabled", "budget_tokens": 1024}


def post(client: AsgiClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/messages", {"max_tokens": 200, "messages": HI, **fields})


def message(client: AsgiClient, **fields: Any) -> dict[str, Any]:
    response = post(client, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each of which carries its name twice."""
    found = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """The message of an error in Anthropic's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]
    text: str = body["error"]["message"]
    return text


def prompt_of(client: AsgiClient, **fields: Any) -> str:
    """The prompt that a conversation becomes."""
    message(client, **fields)
    return str(tiny_tokenizer().decode(list(client.engine.requests[-1].prompt)))


@pytest.fixture
def client() -> Iterator[AsgiClient]:
    with asgi(says(TEXT, cached_tokens=2)) as found:
        yield found


# --- the real client


def script(request: GenerationRequest) -> Script:
    """max_tokens chooses the behaviour, so that one server does for all tests."""
    match request.max_tokens:
        case 401:
            return says(TEXT, fault_at=3, fault=LinkClosed("the worker is gone"))
        case 402:
            return says(TEXT, fault_at=0, fault=BackburnerError("a defect"))
        case 403:
            return says(TEXT, fault_at=0, fault=LinkClosed("the worker is gone"))
        case 404:
            return says(THOUGHT, cached_tokens=2)
        case 405:
            answered = "tool_response" in tiny_tokenizer().decode(list(request.prompt))
            return says("It rains." if answered else "I look.\n\n" + CALL)
    return says(TEXT, cached_tokens=2)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[anthropic.Anthropic, ScriptedEngine]]:
    with listening(script) as (url, engine):
        yield anthropic.Anthropic(base_url=url, api_key="none", max_retries=2, timeout=20), engine


@pytest.fixture
def claude(served: tuple[anthropic.Anthropic, ScriptedEngine]) -> anthropic.Anthropic:
    return served[0]


def test_a_message(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model=MODEL, max_tokens=100, messages=HI)
    assert [(block.type, block.text) for block in answer.content] == [("text", TEXT)]
    assert (answer.role, answer.model) == ("assistant", MODEL)
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req_")


def test_a_stream_adds_up_to_the_message(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model=MODEL, max_tokens=100, messages=HI) as stream:
        text = "".join(stream.text_stream)
        snapshot = stream.get_final_message()
    assert text == TEXT
    assert stream.request_id.startswith("req_")
    whole = claude.messages.create(model=MODEL, max_tokens=100, messages=HI)
    assert snapshot.to_dict() == whole.to_dict() | {"id": snapshot.id}


def test_a_stream_of_thoughts_text_and_calls_adds_up_to_the_message(claude: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": 404, "messages": HI, "tools": TOOLS, "thinking": THINKING}
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        snapshot = stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
    whole = claude.messages.create(**asked)
    for answer in (snapshot, whole):
        thinking, text, *calls = answer.content
        assert (thinking.type, thinking.thinking, thinking.signature) == ("thinking", "So.", SIGNATURE)
        assert (text.type, text.text) == ("text", "I look.")
        assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Köln", "days": 2})] * 2
        assert len({call.id for call in calls}) == 2
        assert all(call.id.startswith("toolu_") for call in calls)
        assert answer.stop_reason == "tool_use"
    assert snapshot.usage == whole.usage
    assert whole.usage.cache_read_input_tokens == 2


def test_a_loop_with_a_tool_ends_with_the_answer(claude: anthropic.Anthropic) -> None:
    said: list[Any] = [{"role": "user", "content": "Weather?"}]
    asked = {"model": MODEL, "max_tokens": 405, "tools": TOOLS}
    first = claude.messages.create(messages=said, **asked)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    said += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
    ]
    second = claude.messages.create(messages=said, **asked)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "It rains.")


def test_tokens_are_counted_as_the_message_counts_them(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HI, "tools": TOOLS, "system": "Be brief."}
    counted = claude.messages.count_tokens(**asked).input_tokens
    usage = claude.messages.create(max_tokens=100, **asked).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert usage.cache_creation_input_tokens == 0
    more = claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    assert more.input_tokens > 4096


def test_the_asynchronous_client(claude: anthropic.Anthropic) -> None:
    async def text() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=str(claude.base_url), api_key="none") as client,
            client.messages.stream(model=MODEL, max_tokens=100, messages=HI) as stream,
        ):
            return await stream.get_final_text()

    assert asyncio.run(text()) == TEXT


def test_errors_raise_the_classes_that_callers_catch(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist") as unknown:
        claude.messages.create(model="claude-of-old", max_tokens=100, messages=HI)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model=MODEL, max_tokens=0, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 maximum"):
        claude.messages.create(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "word " * 5000}]
        )
    with pytest.raises(anthropic.APIStatusError, match="the worker is gone") as lost:
        claude.with_options(max_retries=0).messages.create(model=MODEL, max_tokens=403, messages=HI)
    assert lost.value.status_code == 503


def test_a_failure_in_mid_stream_raises_with_the_message(claude: anthropic.Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="the worker is gone"),
        claude.messages.stream(model=MODEL, max_tokens=401, messages=HI) as stream,
    ):
        stream.get_final_message()


def test_a_defect_is_not_retried(served: tuple[anthropic.Anthropic, ScriptedEngine]) -> None:
    claude, engine = served
    engine.requests.clear()
    with pytest.raises(anthropic.InternalServerError, match="a defect"):
        claude.messages.create(model=MODEL, max_tokens=402, messages=HI)
    assert len(engine.requests) == 1


# --- the wire


def test_events_come_in_anthropics_order() -> None:
    with asgi(says(THOUGHT, cached_tokens=2)) as client:
        found = events(post(client, tools=TOOLS, thinking=THINKING, stream=True))
    start, *middle, delta, stop = found
    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}
    assert stop == {"type": "message_stop"}
    # What was found cached is only known at the end; both counts are of the same prompt.
    usage = delta["usage"]
    assert (
        usage["input_tokens"] + usage["cache_read_input_tokens"] == start["message"]["usage"]["input_tokens"]
    )
    kinds = [
        (event["type"].removeprefix("content_block_"), event["index"], event.get("delta", {}).get("type"))
        for event in middle
    ]
    merged = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]]
    assert merged == [
        ("start", 0, None),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"),
        ("stop", 0, None),
        ("start", 1, None),
        ("delta", 1, "text_delta"),
        ("stop", 1, None),
        ("start", 2, None),
        ("delta", 2, "input_json_delta"),
        ("stop", 2, None),
        ("start", 3, None),
        ("delta", 3, "input_json_delta"),
        ("stop", 3, None),
    ]


def test_pings_come_by_the_clock_from_queueing_on() -> None:
    slow = says("AB", prefill=[(1, 2)] * 4, prefill_delay_s=0.1, token_delay_s=0.2)
    with asgi(slow, keep_alive_s=0.05) as client:
        found = [event["type"] for event in events(post(client, stream=True))]
    assert found[0] == "message_start"
    first = found.index("content_block_start")
    assert found[1:first].count("ping") >= 3
    assert "ping" in found[first:]


def test_a_failure_in_mid_stream_is_an_error_event_and_no_stop() -> None:
    with asgi(says(TEXT, fault_at=3, fault=LinkClosed("the worker is gone"))) as client:
        *_, last = found = events(post(client, stream=True))
    assert last["error"] == {"type": "overloaded_error", "message": "the worker is gone"}
    assert last["type"] == "error"
    assert {"message_delta", "message_stop"}.isdisjoint(event["type"] for event in found)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_overloaded_before_the_stream_begins(stream: bool) -> None:
    with asgi(says(TEXT)) as client:
        client.engine.alive = False
        response = post(client, stream=stream)
    refused(response, 503, "overloaded_error")
    assert "retry-after" in response.headers


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (QueueFull("full"), 429, "rate_limit_error"),
        (EngineDead("gone"), 503, "overloaded_error"),
        (HostFull("full"), 503, "overloaded_error"),
        (BackburnerError("odd"), 500, "api_error"),
        (ContextExceeded("it is too much"), 400, "invalid_request_error"),
    ],
)
def test_a_failure_has_anthropics_type(fault: BackburnerError, status: int, kind: str) -> None:
    with asgi(says(TEXT, fault_at=0, fault=fault)) as client:
        text = refused(post(client), status, kind)
    assert text.startswith("prompt is too long: " if status == 400 else str(fault))


def test_what_never_reaches_the_route_has_the_shape_too() -> None:
    with asgi(says(TEXT), max_body_bytes=100, api_keys=("secret",)) as client:
        key = {"x-api-key": "secret"}
        refused(client.post("/v1/messages", {}), 401, "authentication_error")
        refused(
            client.post("/v1/messages", {}, headers={**key, "host": "evil.example"}), 403, "permission_error"
        )
        refused(client.post("/v1/messages", {"a": "b" * 100}, headers=key), 413, "request_too_large")
        refused(client.get("/v1/messages", headers=key), 405, "invalid_request_error")
        refused(client.get("/v1/messages/batches", headers=key), 404, "not_found_error")
        refused(client.raw(b"{", "/v1/messages", x_api_key="secret"), 400, "invalid_request_error")
        refused(client.raw(b"[NaN]", "/v1/messages", x_api_key="secret"), 400, "invalid_request_error")
        # Elsewhere it stays OpenAI's.
        assert "type" not in client.get("/v1/messagesque", headers=key).json()


def test_an_unknown_model_is_not_found_and_an_alias_is_known(client: AsgiClient) -> None:
    refused(post(client, model="claude-sonnet"), 404, "not_found_error")
    assert message(client, model="gpt-4o")["model"] == MODEL
    refused(client.post("/v1/messages/count_tokens", {"model": "x", "messages": HI}), 404, "not_found_error")


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "nothing to answer"),
        ({"messages": [{"role": "system", "content": "x"}]}, "nothing to answer"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "'None'"),
        ({"messages": [{"role": "user", "content": [{"type": {"a": 1}}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]: a block of type 'image'",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
            "messages[0].content[0].input",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
                    }
                ]
            },
            "tool_result",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "server_tool_use"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "name is required"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": TOOLS}, "'g'"),
        ({"tool_choice": "auto", "tools": TOOLS}, "tool_choice"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": [3]}, "stop_sequences"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 3}}}, "output_config.format.schema"),
    ],
)
def test_bad_input_is_a_400_that_says_where(client: AsgiClient, fields: dict[str, Any], blamed: str) -> None:
    body = {"max_tokens": 10, "messages": HI, **fields}
    text = refused(client.post("/v1/messages", body), 400, "invalid_request_error")
    assert blamed in text
    if body["max_tokens"]:
        refused(client.post("/v1/messages", {**body, "stream": True}), 400, "invalid_request_error")
    assert not client.engine.requests


VALUES = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=4)
KINDS = ["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image"]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | VALUES},
    optional={
        "text": VALUES,
        "thinking": VALUES,
        "id": VALUES,
        "name": VALUES,
        "tool_use_id": VALUES,
        "is_error": VALUES,
        "input": VALUES | st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
        "content": VALUES
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": VALUES}), max_size=2),
    },
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": VALUES | st.lists(BLOCKS | VALUES, max_size=3),
    }
)


def test_no_conversation_is_a_fault_of_the_server(client: AsgiClient) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.lists(MESSAGES, max_size=4), VALUES | st.lists(BLOCKS, max_size=2))
    def check(said: list[Any], system: Any) -> None:
        body = {"messages": said, "system": system, "tools": TOOLS}
        response = client.post("/v1/messages/count_tokens", body)
        if response.status_code != 200:
            refused(response, 400, "invalid_request_error")

    check()


def test_unknown_fields_and_headers_are_ignored(client: AsgiClient) -> None:
    response = client.post(
        "/v1/messages?beta=true",
        {
            "max_tokens": 10,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
                }
            ],
            "tools": [{**TOOLS[0], "cache_control": {"type": "ephemeral"}, "defer_loading": True}],
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "context_management": {"edits": []},
            "output_config": {"effort": "high"},
        },
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "none"},
    )
    assert response.status_code == 200


# --- the answer


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        THOUGHT,
        CALL,
        "Only a thought that ends",
        "a\n</think>\n\n" + CALL + " and more " + CALL,
        "x\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nnever closed",
        "",
    ],
)
@pytest.mark.parametrize("thinking", [THINKING, {"type": "disabled"}])
def test_whole_and_streamed_answers_are_the_same(text: str, thinking: dict[str, Any]) -> None:
    with asgi(says(text)) as client:
        whole = message(client, tools=TOOLS, thinking=thinking)
        found = events(post(client, tools=TOOLS, thinking=thinking, stream=True))
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            (_, field), *_ = [(k, k) for k in event["delta"] if k != "type"]
            blocks[-1][field] = blocks[-1].get(field, "") + event["delta"][field]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
    nameless = [
        [{**b, "id": None} if "id" in b else b for b in content] for content in (blocks, whole["content"])
    ]
    assert nameless[0] == nameless[1]
    assert found[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert found[-2]["usage"] == whole["usage"]


def test_the_stop_sequence_that_was_met_is_named(client: AsgiClient) -> None:
    answer = message(client, stop_sequences=["never", " world", "wor"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " world")
    assert answer["content"] == [{"type": "text", "text": "hello 🙂"}]
    *_, delta, _ = events(post(client, stop_sequences=[" world"], stream=True))
    assert delta["delta"]["stop_sequence"] == " world"
    assert message(client, stop_sequences=["never"])["stop_reason"] == "end_turn"


def test_a_stop_sequence_in_a_thought_leaves_it_a_thought(client: AsgiClient) -> None:
    answer = message(client, stop_sequences=[" world"], thinking=THINKING)
    assert answer["stop_reason"] == "stop_sequence"
    assert [(block["type"], block.get("thinking")) for block in answer["content"]] == [
        ("thinking", "hello 🙂")
    ]


def test_a_cut_answer_says_whose_limit_it_was() -> None:
    with asgi(says("word " * 300), ctx_size=100) as client:
        assert message(client, max_tokens=3)["stop_reason"] == "max_tokens"
        assert message(client, max_tokens=1000)["stop_reason"] == "model_context_window_exceeded"


def test_half_of_a_surrogate_pair_in_an_argument_is_a_replacement_character() -> None:
    said = '<tool_call>\n{"name": "weather", "arguments": {"city": "a\\ud83d", "days": 1}}\n</tool_call>'
    with asgi(says(said)) as client:
        answer = message(client, tools=TOOLS)
    assert answer["content"][0]["input"] == {"city": "a\ufffd", "days": 1}


def test_one_call_only_where_parallel_use_is_disabled() -> None:
    with asgi(says(CALL + CALL)) as client:
        one = message(client, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert len(one["content"]) == 1
        none = message(client, tools=TOOLS, tool_choice={"type": "none"})
        assert [block["type"] for block in none["content"]] == ["text"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_an_answer_is_held_to_a_call_that_is_asked_for(choice: dict[str, Any]) -> None:
    with asgi(says(CALL)) as client:
        answer = message(client, tools=TOOLS, tool_choice=choice)
        grammar = client.engine.requests[-1].grammar
        assert grammar is not None
        assert "<function=weather>" in (grammar.rules or "")
    assert [(block["type"], block["input"]) for block in answer["content"]] == [
        ("tool_use", {"city": "Köln", "days": 2})
    ]
    assert answer["stop_reason"] == "tool_use"


def test_a_schema_is_kept_by_grammar(client: AsgiClient) -> None:
    for fields in (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ):
        message(client, **fields)
        grammar = client.engine.requests[-1].grammar
        assert grammar is not None
        assert json.loads(grammar.json_schema or "") == SCHEMA


def test_sampling_reaches_the_engine(client: AsgiClient) -> None:
    message(client, temperature=0.5, top_p=0.9, top_k=7, max_tokens=11)
    request = client.engine.requests[0]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 7)
    assert request.max_tokens == 11


def test_leaving_ends_the_work() -> None:
    with listening(says("so it goes on " * 200, token_delay_s=0.01)) as (url, engine):
        claude = anthropic.Anthropic(base_url=url, api_key="none")
        with claude.messages.stream(model=MODEL, max_tokens=1000, messages=HI) as stream:
            next(iter(stream.text_stream))
        assert eventually(lambda: engine.running is None, 2)
        assert not engine.completed


# --- the conversation


def test_thinking_is_on_or_off_as_it_is_asked_for(client: AsgiClient) -> None:
    for kind, thinks in (
        ("enabled", True),
        ("adaptive", True),
        ("disabled", False),
        ("between_tools", False),
    ):
        assert prompt_of(client, thinking={"type": kind}).endswith("<think>\n") == thinks
    assert not prompt_of(client).endswith("<think>\n")


def test_without_a_word_on_thinking_there_is_none_whatever_the_servers_default() -> None:
    with asgi(says(TEXT), chat_template_kwargs={"enable_thinking": True}) as client:
        assert not prompt_of(client).endswith("<think>\n")
        assert [block["type"] for block in message(client)["content"]] == ["text"]
        asked = client.engine.requests[-1].prompt
        counted = client.post("/v1/messages/count_tokens", {"messages": HI}).json()["input_tokens"]
        assert counted == len(asked)
        assert prompt_of(client, thinking=THINKING).endswith("<think>\n")


def test_system_blocks_stand_first_without_the_line_that_changes_each_time(client: AsgiClient) -> None:
    header = "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"
    blocks = [{"type": "text", "text": text} for text in (header, "Be brief.", "Be kind.")]
    expected = "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n"
    assert prompt_of(client, system=blocks).startswith(expected)
    assert prompt_of(client, system=f"{header}\nBe brief.\n\nBe kind.").startswith(expected)
    asked = [{"role": "system", "content": "Be kind."}, *HI]
    assert prompt_of(client, system="Be brief.", messages=asked).startswith(expected)


def test_a_system_message_in_the_middle_stays_in_its_place(client: AsgiClient) -> None:
    asked = [*HI, {"role": "system", "content": [{"type": "text", "text": "Agents: a, b."}]}]
    prompt = prompt_of(client, system="Be brief.", messages=asked)
    assert prompt.count("<|im_start|>system") == 1
    assert prompt.index("hi<|im_end|>") < prompt.index("<system-reminder>\nAgents: a, b.\n</system-reminder>")
    assert prompt_of(client, messages=[*HI, {"role": "system", "content": []}]) == prompt_of(client)


def test_a_replayed_turn_is_what_the_template_makes_of_the_same_turn_in_chat(client: AsgiClient) -> None:
    anthropics = [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "twice"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "So.", "signature": SIGNATURE},
                {"type": "redacted_thinking", "data": "c2VjcmV0"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Köln", "days": 2}},
                {"type": "tool_use", "id": "b", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "b", "is_error": True, "content": "no city"},
                {"type": "tool_result", "tool_use_id": "b"},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]

    def call(call_id: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}

    chat = [
        {"role": "user", "content": "Look\ntwice"},
        {
            "role": "assistant",
            "reasoning_content": "So.",
            "content": "I look.",
            "tool_calls": [call("a", '{"city": "Köln", "days": 2}'), call("b", "{}")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no city"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "Well?"},
    ]
    prompt = prompt_of(client, messages=anthropics, tools=TOOLS)
    function = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
    response = client.chat(messages=chat, tools=[{"type": "function", "function": function}])
    assert response.status_code == 200
    assert prompt == tiny_tokenizer().decode(list(client.engine.requests[-1].prompt))


def test_an_answer_goes_on_where_the_last_message_ends(client: AsgiClient) -> None:
    begun = [*HI, {"role": "assistant", "content": "The best answer is ("}]
    assert prompt_of(client, messages=begun).endswith("The best answer is (")
    empty = [*HI, {"role": "assistant", "content": []}]
    assert prompt_of(client, messages=empty) == prompt_of(client)


# --- the tiny model


def test_the_tiny_model_finds_the_fact_whole_and_streamed() -> None:
    system, *asked = messages()
    with serve("--device", "none") as server:
        claude = anthropic.Anthropic(base_url=server.url, api_key="none")
        request: dict[str, Any] = {
            "model": TINY,
            "max_tokens": 40,
            "system": system["content"],
            "messages": asked,
        }
        whole = claude.messages.create(**request)
        with claude.messages.stream(**request) as stream:
            streamed = stream.get_final_message()
        count = claude.messages.count_tokens(model=TINY, system=system["content"], messages=asked)
    assert "4821" in whole.content[0].text
    assert [block.text for block in streamed.content] == [block.text for block in whole.content]
    assert (streamed.stop_reason, whole.stop_reason) == ("end_turn", "end_turn")
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    assert streamed.usage.cache_read_input_tokens
