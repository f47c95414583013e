"""openai 1.109.1, in an environment of its own: many programs still bring it."""

import json
from typing import Any

import pytest

from tests.clients.foreign import SCRIPTS, observe, python_with
from tests.clients.plays import (
    CALL_ARGUMENTS,
    CONCLUSION,
    DEFECT,
    GONE,
    SAY,
    TEXT,
    THOUGHT,
    TOOLS,
    completion_tokens,
)
from tests.processes import messages

pytestmark = pytest.mark.clients
VERSION = "1.109.1"


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, scripted_url: str, tiny_url: str) -> dict[str, Any]:
    python = python_with(request.config, f"openai=={VERSION}")
    script = SCRIPTS / "openai_v1.py"
    case = json.dumps(SAY | {"defect": DEFECT, "tools": TOOLS, "messages": messages(2)})
    return observe([str(python), str(script)], SCRIPTS, scripted_url, tiny_url, case)


def test_whole_and_streamed_answers(found: dict[str, Any]) -> None:
    assert found["version"] == VERSION
    choice = found["whole"]["choices"][0]
    assert choice["message"]["content"] == found["streamed"] == TEXT
    assert choice["finish_reason"] == "stop"
    assert found["whole"]["usage"]["completion_tokens"] == completion_tokens()
    assert found["usage"]["completion_tokens"] == completion_tokens()
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert "4821" in found["tiny"]


def test_calls_and_thoughts(found: dict[str, Any]) -> None:
    choice = found["assembled"]
    assert choice["finish_reason"] == "tool_calls"
    assert [json.loads(c["function"]["arguments"]) for c in choice["message"]["tool_calls"]] == CALL_ARGUMENTS
    assert found["kinds"].count("tool_calls.function.arguments.done") == 2
    assert (found["thinks"]["reasoning_content"], found["thinks"]["content"]) == (THOUGHT, CONCLUSION)


def test_errors_have_their_class_message_and_code(found: dict[str, Any]) -> None:
    errors = found["errors"]
    assert errors["breaks"] == {"class": "APIError", "message": GONE, "code": "link_closed"}
    assert errors["defect"]["class"] == errors["lost"]["class"] == "InternalServerError"
    assert GONE in errors["lost"]["message"]
    assert (errors["overflow"]["class"], errors["overflow"]["code"]) == (
        "BadRequestError",
        "context_length_exceeded",
    )
    assert (errors["value"]["class"], errors["value"]["code"]) == ("BadRequestError", "invalid_value")
