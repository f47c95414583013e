"""Bad input gets a 4xx in OpenAI's shape before anything is queued, and the server lives on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backburner.api.schemas import UNSUPPORTED, ChatBody, CompletionBody
from tests.api_support import HI, AsgiClient, asgi, error_of
from tests.scripted_engine import says

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def schema(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.fixture(scope="module")
def client() -> Iterator[AsgiClient]:
    with asgi(says("ok"), max_body_bytes=1_000_000) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_queued_and_the_server_lives_on(client: AsgiClient) -> Iterator[None]:
    client.engine.requests.clear()
    yield
    assert not client.engine.requests
    assert client.chat().status_code == 200


def body_with(fields: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi"}],' + fields.encode() + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe{}",
        b'{"a":1}{"b":2}',
        b"[]",
        b'"text"',
        b"1",
        b"null",
        body_with('"temperature":NaN'),
        body_with('"temperature":Infinity'),
        body_with('"temperature":1e999'),
        body_with('"temperature":-1e999'),
        body_with('"unknown":1e999'),
        body_with('"unknown":{"x":[NaN]}'),
        body_with('"seed":' + "9" * 5000),
        body_with('"x":"\\ud83d"'),
        body_with('"\\uD83D":1'),
        b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"messages":[{"role":"user","content":"\\ude42\\ud83d"}]}',
        body_with('"x":' + "[" * 100_000),
        body_with('"x":' + "[" * 3000 + "]" * 3000),
        body_with('"tools":' + '{"a":' * 3000 + "1" + "}" * 3000),
        body_with(
            '"tools":[{"type":"function","function":{"name":"f","parameters":' + '{"a":' * 1000 + "1}" * 1000
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_is_not_proper_json_is_a_400(client: AsgiClient, body: bytes, path: str) -> None:
    assert error_of(client.raw(body, path), 400)["type"] == "invalid_request_error"


def test_tool_parameters_nested_a_thousand_deep_are_a_400(client: AsgiClient) -> None:
    text = '{"a":' * 1000 + "1" + "}" * 1000
    body = body_with('"tools":[{"type":"function","function":{"name":"f","parameters":' + text + "}}]")
    assert "nested" in error_of(client.raw(body), 400)["message"]


@pytest.mark.parametrize(("depth", "status"), [(90, 200), (110, 400)])
def test_nesting_is_limited_far_below_the_parsers_own_limit(
    client: AsgiClient, depth: int, status: int
) -> None:
    function = '{"name":"f","parameters":' + '{"a":' * depth + "1" + "}" * depth + "}"
    response = client.raw(body_with('"tools":[{"type":"function","function":' + function + "}]"))
    assert response.status_code == status
    client.engine.requests.clear()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "robot", "content": "hi"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"text": "hi"}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"model": 5}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"3072": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema({"type": "nonsense"})}, "response_format.json_schema.schema"),
        ({"response_format": schema({"$ref": "#/nowhere"})}, "response_format.json_schema.schema"),
        (
            {"response_format": schema({"type": "string", "pattern": "("})},
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema("object")}, "response_format.json_schema.schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "always", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": TOOLS}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_a_field_out_of_range_is_a_400_that_names_it(
    client: AsgiClient, fields: dict[str, Any], param: str
) -> None:
    assert error_of(client.chat(**fields), 400)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 3},
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"min_tokens": 5},
        {"stop_token_ids": [5]},
        {"modalities": ["text", "audio"]},
        {"grammar": "root ::= 'x'"},
        {"guided_json": {"type": "object"}},
        {"typical_p": 0.9},
        {"dry_multiplier": 0.8},
        {"mirostat": 2},
        {"xtc_probability": 0.5},
        {"bad_words": ["no"]},
        {"allowed_token_ids": [1, 2]},
        {"truncate_prompt_tokens": 100},
        {"n_predict": 5},
        {"chat_template": "{{ 1 }}"},
    ],
)
def test_what_is_not_supported_yet_is_refused_by_name(client: AsgiClient, fields: dict[str, Any]) -> None:
    error = error_of(client.chat(**fields), 400)
    assert error["param"] == next(iter(fields))
    assert error["code"] == "unsupported_parameter"
    assert "not supported yet" in error["message"]


def test_a_stream_with_bad_input_is_a_400_and_no_stream(client: AsgiClient) -> None:
    response = client.chat(stream=True, temperature=-1)
    assert error_of(response, 400)["param"] == "temperature"
    assert response.headers["content-type"] == "application/json"


def test_a_template_that_refuses_the_messages_is_a_400(
    client: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ raise_exception('No user query found in messages.') }}"
    monkeypatch.setattr(client.app.state.api.tokenizer._tokenizer, "chat_template", template)
    error = error_of(client.chat(), 400)
    monkeypatch.undo()
    assert "No user query found in messages." in error["message"]
    assert error["param"] == "messages"


def test_a_template_that_stumbles_over_the_data_is_a_400(
    client: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        client.app.state.api.tokenizer._tokenizer, "chat_template", "{{ messages[0].content + 1 }}"
    )
    error_of(client.chat(), 400)
    monkeypatch.undo()


def test_another_content_type_is_refused_with_the_header_to_send(client: AsgiClient) -> None:
    error = error_of(client.raw(b"{}", content_type="text/plain"), 415)
    assert "application/json" in error["message"]


def test_json_with_a_charset_is_accepted(client: AsgiClient) -> None:
    body = json.dumps({"messages": HI}).encode()
    assert client.raw(body, content_type="application/json; charset=utf-8").status_code == 200
    client.engine.requests.clear()


def test_a_body_that_declares_too_much_is_refused_unread(client: AsgiClient) -> None:
    error = error_of(client.raw(b"{}", content_length="1000001"), 413)
    assert error["code"] == "body_too_large"


def test_a_body_that_turns_out_too_large_is_refused(client: AsgiClient) -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    headers = {"content-type": "application/json"}
    response = client.request("POST", "/v1/chat/completions", content=chunks(), headers=headers)
    error_of(response, 413)


def test_text_with_nul_is_accepted(client: AsgiClient) -> None:
    assert client.chat(messages=[{"role": "user", "content": "a\0b"}]).status_code == 200
    client.engine.requests.clear()


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_a_404(client: AsgiClient, stream: bool) -> None:
    error = error_of(client.chat(model="gpt-5 \x00 'x'", stream=stream), 404)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


@pytest.mark.parametrize("name", ["some-org/tiny-qwen", "tiny-qwen", "gpt-4o", None])
def test_the_served_name_its_basename_and_aliases_are_accepted(client: AsgiClient, name: str | None) -> None:
    assert client.chat(model=name).json()["model"] == "some-org/tiny-qwen"
    client.engine.requests.clear()


def test_other_routes_and_methods_have_the_same_error_shape(client: AsgiClient) -> None:
    error_of(client.get("/v1/nothing"), 404)
    response = client.get("/v1/chat/completions")
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from([*ChatBody.model_fields, *CompletionBody.model_fields, *UNSUPPORTED])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(field_names, json_values, max_size=4),
    st.sampled_from(["chat/completions", "completions"]),
)
def test_no_body_makes_a_500(client: AsgiClient, fields: dict[str, Any], path: str) -> None:
    body = json.dumps({"messages": HI, "prompt": "hi"} | fields).encode()
    response = client.raw(body, f"/v1/{path}")
    client.engine.requests.clear()
    if response.status_code != 200:
        assert error_of(response, response.status_code)
        assert response.status_code in (400, 404)
