"""Bodies that no client means to send: each is answered or refused in the API's shape, none is a defect or a hang."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api_support import HI, AsgiClient, asgi
from tests.scripted_engine import says

CHAT: dict[str, Any] = {
    "model": "tiny-qwen",
    "messages": HI,
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": ["x"],
    "stream": False,
    "logit_bias": {"5": 1},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "stream_options": {"include_usage": True},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 2, "stop": "x"},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "Be brief.",
        "text": {"format": {"type": "text"}},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "max_tokens": 3,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "system": "Be brief.",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "disabled"},
    },
    "/v1/messages/count_tokens": {"messages": HI},
    "/tokenize": {"content": "hi", "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": HI},
}
every_path = pytest.mark.parametrize("path", BODIES)
# What breaks parsers: numbers beyond JSON, halves of characters, depth, wrong kinds, wrong encodings.
ODD = (
    "NaN", "-Infinity", "1e999", "-1", "0", "1.5", "9" * 400, "true", "null", '""', '"\\ud83d"', '"\\u0000"', "[]",
    "{}", "[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500, '[{"type": "text"}]', '[null]', '{"type": []}',
    "'x'", "", '"' + "a" * 5000 + '"', '{"": {"": []}}', "[[1], 2]", '{"type": "json_schema"}', '"\\udc00\\ud800"',
)  # fmt: skip
BYTES = (
    b"",
    b"\xff\xfe{}",
    b"\x00",
    b"{",
    b"[1]",
    b'"x"',
    b"null",
    b"{}{}",
    b'{"model"',
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf{}",
)


@pytest.fixture(scope="module")
def client() -> Iterator[AsgiClient]:
    with asgi(says("hello 🙂"), ctx_size=256) as found:
        yield found


def check(client: AsgiClient, path: str, body: bytes, **headers: str) -> None:
    response = client.raw(body, path, **headers)
    assert response.status_code < 500, (body[:300], response.text)
    if response.status_code >= 400:
        assert response.json()["error"]["message"], body[:300]
    assert client.engine.status().alive


@every_path
def test_each_field_with_each_odd_value(client: AsgiClient, path: str) -> None:
    good = BODIES[path]
    for name in good:
        for odd in ODD:
            fields = [f"{json.dumps(k)}: {odd if k == name else json.dumps(v)}" for k, v in good.items()]
            check(client, path, ("{" + ", ".join(fields) + "}").encode())


@every_path
def test_bodies_that_are_no_objects(client: AsgiClient, path: str) -> None:
    for body in BYTES:
        check(client, path, body)
        check(client, path, body, content_type="text/plain; charset=utf-16")
    assert client.raw(b"{}", path, content_encoding="gzip").status_code < 500


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "name", "function", "arguments", "id", "properties"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@every_path
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fields_of_any_kind(client: AsgiClient, path: str, data: st.DataObject) -> None:
    body = dict(BODIES[path])
    for name in data.draw(st.lists(st.sampled_from(sorted(body)), min_size=1, max_size=2, unique=True)):
        body[name] = data.draw(values)
    check(client, path, json.dumps(body).encode())


@every_path
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bytes_changed_at_random(client: AsgiClient, path: str, data: st.DataObject) -> None:
    body = bytearray(json.dumps(BODIES[path]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not body:
            break
    check(client, path, bytes(body))
