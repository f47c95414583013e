"""@ai-sdk/openai-compatible, through which opencode and others talk."""

import json
from typing import Any

import pytest

from tests.clients.foreign import observe_node
from tests.clients.plays import (
    CALL_ARGUMENTS,
    CONCLUSION,
    GONE,
    SAY,
    SCHEMA,
    TEXT,
    THOUGHT,
    completion_tokens,
)
from tests.processes import messages

pytestmark = pytest.mark.clients
PACKAGES = ("@ai-sdk/openai-compatible@2.0.92", "ai@6.0.326")


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, scripted_url: str, tiny_url: str) -> dict[str, Any]:
    case = json.dumps(SAY | {"schema": SCHEMA, "messages": messages(2)})
    return observe_node(request.config, "ai_sdk.mjs", PACKAGES, scripted_url, tiny_url, case)


def test_whole_and_streamed_answers(found: dict[str, Any]) -> None:
    for answer in (found["whole"], found["streamed"]):
        assert (answer["text"], answer["finish"]) == (TEXT, "stop")
        assert answer["usage"]["outputTokens"] == completion_tokens()
        assert answer["usage"]["cachedInputTokens"] == 2
    assert "4821" in found["tiny"]


def test_calls_and_thoughts(found: dict[str, Any]) -> None:
    assert found["calls"] == {"finish": "tool-calls", "inputs": CALL_ARGUMENTS}
    streamed = found["streamedCalls"]
    assert streamed["finish"] == "tool-calls"
    assert [json.loads(text) for text in streamed["raw"].values()] == CALL_ARGUMENTS
    assert [call["input"] for call in streamed["calls"]] == CALL_ARGUMENTS
    assert (found["thinks"]["reasoning"], found["thinks"]["text"]) == (THOUGHT, CONCLUSION)


def test_errors_keep_status_and_message(found: dict[str, Any]) -> None:
    assert GONE in found["breaks"]["error"]["message"]
    assert found["overflow"]["status"] == found["value"]["status"] == 400
    assert "maximum context length is 4096 tokens" in found["overflow"]["message"]
    assert "top_p" in found["value"]["message"]
    assert (found["lost"]["status"], found["lost"]["message"]) == (503, GONE)
    assert found["lost"]["retryable"]
    assert not found["overflow"]["retryable"]
