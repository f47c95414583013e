"""@mariozechner/pi-ai, the layer of the pi agent: roles, replayed calls, and what makes it compact."""

import json
from typing import Any

import pytest

from tests.clients.foreign import observe_node
from tests.clients.plays import (
    CALL_ARGUMENTS,
    CONCLUSION,
    GONE,
    RESULT,
    SAY,
    SCHEMA,
    TEXT,
    THOUGHT,
    completion_tokens,
)
from tests.processes import FACT, QUESTION

pytestmark = pytest.mark.clients
PACKAGES = ("@mariozechner/pi-ai@0.73.1",)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, scripted_url: str, tiny_url: str) -> dict[str, Any]:
    case = json.dumps(SAY | {"schema": SCHEMA, "fact": FACT, "question": QUESTION})
    return observe_node(request.config, "pi.mjs", PACKAGES, scripted_url, tiny_url, case)


def test_an_answer_and_its_usage(found: dict[str, Any]) -> None:
    plain = found["plain"]
    assert (plain["text"], plain["stop"], plain["error"]) == (TEXT, "stop", None)
    assert plain["usage"]["output"] == completion_tokens()
    assert plain["usage"]["cacheRead"] == 2
    assert "4821" in found["tiny"]["text"]


def test_calls_are_whole_and_replayed(found: dict[str, Any]) -> None:
    # Its own assembly would repair a brace that is missing.
    assert [json.loads(text) for text in found["calls"]["raw"].values()] == CALL_ARGUMENTS
    assert [call["arguments"] for call in found["calls"]["calls"]] == CALL_ARGUMENTS
    assert found["calls"]["stop"] == "toolUse"
    assert (found["after"]["text"], found["after"]["stop"]) == (RESULT, "stop")


def test_thoughts_are_apart(found: dict[str, Any]) -> None:
    assert (found["thinks"]["thinking"], found["thinks"]["text"]) == (THOUGHT, CONCLUSION)


def test_errors_keep_their_message_and_an_overflow_is_recognised(found: dict[str, Any]) -> None:
    for name in ("breaks", "lost"):
        assert found[name]["stop"] == "error"
        assert GONE in found[name]["error"]
        assert not found[name]["overflow"]
    assert found["overflow"]["overflow"]
