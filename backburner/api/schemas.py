"""Request bodies as pydantic models: what is read, in which range, and what is refused by name."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from backburner.api.errors import unsupported

MAX_STOP_STRINGS = 64
# Each stop string is compared with the tail of the answer at every token.
MAX_STOP_CHARACTERS = 1000
# The prompts of one request are answered in turn; more than this is a batch job in disguise.
MAX_PROMPTS = 128


def _list_of_stops(stop: object) -> object:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise ValueError("has to be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"{len(stops)} stop strings; at most {MAX_STOP_STRINGS} are supported")
    if any(len(s) > MAX_STOP_CHARACTERS for s in stops):
        raise ValueError(f"a stop string is longer than {MAX_STOP_CHARACTERS} characters")
    return [s for s in stops if s]


def _list_of_prompts(prompt: object) -> object:
    """A string, a list of strings, a list of token ids, or a list of such lists, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(p) is int for p in prompt):
            return [prompt]
        if len(prompt) > MAX_PROMPTS:
            raise ValueError(f"{len(prompt)} prompts; at most {MAX_PROMPTS} are supported")
        if all(isinstance(p, str) for p in prompt) or all(
            isinstance(p, list) and all(type(t) is int for t in p) for p in prompt
        ):
            return prompt
    raise ValueError("has to be a string, a list of strings, a list of token ids, or a list of such lists")


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Only the name is checked; the tool goes to the template as it came, in its own order of keys."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("function.name has to be a non-empty string")
    return tool


Tool = Annotated[dict[str, Any], AfterValidator(_check_tool)]
Stops = Annotated[list[str], BeforeValidator(_list_of_stops)]


class Body(BaseModel):
    """Strict types, and unknown fields ignored: clients send many that are not ours."""

    model_config = ConfigDict(strict=True, extra="ignore")


class FunctionCall(Body):
    name: str
    arguments: Any = None


class ToolCall(Body):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(Body):
    """Only the shape is checked here; `parsing.history` reads content and arguments."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None  # the same by another name, or something else entirely
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class GenerationBody(Body):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stops = Field(default_factory=list)
    # -1 is the usual word of local servers for "none given".
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # 0 and -1: off
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    ignore_eos: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[Tool] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(GenerationBody):
    prompt: Annotated[list[str | list[int]], BeforeValidator(_list_of_prompts)]


def _no_text_format(value: object) -> bool:
    return not (isinstance(value, dict) and value.get("type") == "text")


def _beyond(*neutral: object) -> Callable[[object], bool]:
    # `==` and not `in`: lists and objects are not hashable, and 1 == 1.0 == True is what is wanted.
    return lambda value: not any(value == n for n in neutral)


# Fields that would change the answer and are not implemented: refused when they ask for something.
# Silence would be a wrong answer; null always means "not given".
UNSUPPORTED: Mapping[str, Callable[[object], bool]] = {
    "n": _beyond(1),
    "best_of": _beyond(1),
    "logprobs": _beyond(False),
    "top_logprobs": _beyond(0),
    "prompt_logprobs": _beyond(0),
    "logit_bias": _beyond({}, []),
    "response_format": _no_text_format,
    "tool_choice": _beyond("auto", "none"),
    "functions": _beyond([]),
    "function_call": _beyond("auto", "none"),
    "presence_penalty": _beyond(0),
    "frequency_penalty": _beyond(0),
    "repetition_penalty": _beyond(1),
    "repeat_penalty": _beyond(1),
    "suffix": _beyond(""),
    "echo": _beyond(False),
    "min_tokens": _beyond(0),
    "stop_token_ids": _beyond([]),
    "modalities": _beyond(["text"]),
    "grammar": _beyond(""),
    "json_schema": _beyond({}),
    "guided_json": _beyond(),
    "guided_regex": _beyond(),
    "guided_choice": _beyond(),
    "guided_grammar": _beyond(),
    "structured_outputs": _beyond({}),
    "continue_final_message": _beyond(False),
    "add_generation_prompt": _beyond(True),
}


def refuse_unsupported(body: Mapping[str, object], *, legacy_logprobs: bool = False) -> None:
    """400 for a field that asks for what is not implemented."""
    for name, asks in UNSUPPORTED.items():
        value = body.get(name)
        if value is None:
            continue
        # In /v1/completions `logprobs` is a count, and 0 still asks for the chosen token's own.
        if legacy_logprobs and name == "logprobs" and value is not False:
            raise unsupported(name, f"{name}={value!r}"[:200])
        if asks(value):
            raise unsupported(name, f"{name}={value!r}"[:200])
