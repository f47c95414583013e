"""What the scripted server answers: a word in the prompt chooses, so that one server does for all clients."""

import re
from collections.abc import Callable
from typing import Any

from backburner.engine.request import GenerationRequest
from backburner.errors import BackburnerError, LinkClosed
from tests.scripted_engine import Script, says, tiny_tokenizer
from tests.test_api_cases import call_text

TEXT = "hello 🙂 world"
THOUGHT, CONCLUSION = "Let me count.", "Three."
GONE = "the worker is gone"

CALLS = "PLAY:calls"  # two calls; what follows a result is RESULT
THINKS = "PLAY:thinks"
BREAKS = "PLAY:breaks"  # after three tokens
DEFECT = "PLAY:defect"  # before the first token, as a defect
LOST = "PLAY:lost"  # before the first token, as a lost worker
OVERFLOW = "word " * 5000  # of 4,096 tokens

# What every script of foreign.py is told to say.
SAY: dict[str, Any] = {"calls": CALLS, "thinks": THINKS, "breaks": BREAKS, "lost": LOST, "overflow": OVERFLOW}

CALL_ARGUMENTS: list[dict[str, Any]] = [{"city": "Köln", "code": 'a "b"\n  c'}, {"city": "Oslo", "days": 2}]
RESULT = "It rains in both."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "code": {"type": "string"}},
    "required": ["city"],
}
FUNCTION = {"name": "forecast", "description": "The weather to come.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]


def play(request: GenerationRequest) -> Script:
    prompt = tiny_tokenizer().decode(list(request.prompt))
    word = (re.findall(r"PLAY:\w+", prompt) or [""])[-1]
    if word == CALLS and "<tool_response>" in prompt:
        return says(RESULT)
    if word == CALLS:
        calls = (call_text(**{k: str(v) for k, v in arguments.items()}) for arguments in CALL_ARGUMENTS)
        return says("I look.\n\n" + "\n".join(calls), cached_tokens=2)
    if word == THINKS:
        return says(f"{THOUGHT}\n</think>\n\n{CONCLUSION}")
    if word == BREAKS:
        return says(TEXT, fault_at=3, fault=LinkClosed(GONE))
    if word == DEFECT:
        return says(TEXT, fault_at=0, fault=BackburnerError("an odd defect"))
    if word == LOST:
        return says(TEXT, fault_at=0, fault=LinkClosed(GONE))
    return says(TEXT, cached_tokens=2)


def completion_tokens() -> int:
    return len(says(TEXT).tokens)


def forecast_into(called: list[dict[str, Any]]) -> Callable[..., str]:
    """The function of TOOLS as clients run it; `called` gets the arguments of each call."""

    def forecast(city: str, days: int | None = None, code: str | None = None) -> str:
        """The weather to come."""
        called.append({k: v for k, v in (("city", city), ("days", days), ("code", code)) if v is not None})
        return "rain"

    return forecast
