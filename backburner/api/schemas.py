"""Request bodies as pydantic models: what is read, in which range, and what is refused by name."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from backburner.api.errors import InvalidRequestError, unsupported
from backburner.engine.grammar import check_grammar
from backburner.errors import GrammarError

MAX_STOP_STRINGS = 64
# Each stop string is compared with the tail of the answer at every token.
MAX_STOP_CHARACTERS = 1000
# The prompts and choices of one request are answered in turn; more than this is a batch job in disguise.
MAX_PROMPTS = 128
MAX_CHOICES = 128
# OpenAI's limit.
MAX_TOP_LOGPROBS = 20


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


class ModelBody(Body):
    """A whole request's; one that names no model means the one that is served."""

    model: str | None = None


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


def schema_text(schema: object) -> str:
    """A JSON schema as text, in the client's order of keys."""
    if not isinstance(schema, dict | bool):
        raise ValueError("has to be a JSON schema")
    text = json.dumps(schema, ensure_ascii=False)
    try:
        check_grammar(text)
    except GrammarError as e:
        raise ValueError(str(e)) from e
    return text


class JsonSchema(Body):
    """response_format.json_schema"""

    name: str | None = None
    text: Annotated[str, BeforeValidator(schema_text)] = Field(validation_alias="schema")


def _schema_if_given(schema: object) -> str | None:
    return None if schema is None else schema_text(schema)


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    # llama.cpp's way to give a schema, beside type json_object.
    object_schema: Annotated[str | None, BeforeValidator(_schema_if_given)] = Field(
        None, validation_alias="schema"
    )

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is required with type json_schema")
        return self


def _biases(bias: object) -> object:
    """{"token": bias} as (token, bias) pairs."""
    if bias is None:
        return ()
    if not isinstance(bias, dict):
        raise ValueError("has to be an object of token ids and numbers")
    pairs = []
    for token, value in bias.items():
        if not str(token).isdecimal() or type(value) not in (int, float) or not -100 <= value <= 100:
            raise ValueError("has to map token ids to numbers from -100 to 100")
        pairs.append((int(token), float(value)))
    return tuple(pairs)


def _given_limit(tokens: object) -> object:
    # LM Studio's clients say "no limit" so.
    return None if tokens == -1 else tokens


Limit = Annotated[int | None, Field(ge=1), BeforeValidator(_given_limit)]


class GenerationBody(ModelBody):
    """What chat and text completions have in common."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Stops = Field(default_factory=list)
    # -1 is the usual word of local servers for "none given".
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # 0 and -1: off
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    repeat_penalty: float | None = Field(None, gt=0, le=10)  # llama.cpp's name for it
    logit_bias: Annotated[tuple[tuple[int, float], ...], BeforeValidator(_biases)] = ()
    max_tokens: Limit = None
    ignore_eos: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def logprobs_wanted(self) -> int | None:
        """How many alternatives to each token; None: no logprobs."""
        return None


def _tool_choice(choice: object) -> object:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    function = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return choice
    raise ValueError(
        'has to be "auto", "none", "required" or {"type": "function", "function": {"name": ...}}'
    )


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Limit = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Any, AfterValidator(_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # No ValueError: pydantic would not say which field is to blame.
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            raise InvalidRequestError(
                "tool_choice asks for a call, and there are no tools", param="tool_choice"
            )
        return self

    @property
    def logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    prompt: Annotated[list[str | list[int]], BeforeValidator(_list_of_prompts)]
    echo: bool | None = None
    # A count; 0 still asks for the chosen token's own.
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def logprobs_wanted(self) -> int | None:
        return self.logprobs


def _beyond(*neutral: object) -> Callable[[object], bool]:
    # `==` and not `in`: lists and objects are not hashable, and 1 == 1.0 == True is what is wanted.
    return lambda value: not any(value == n for n in neutral)


# Fields that would change the answer and are not implemented: refused when they ask for something.
# Silence would be a wrong answer; null always means "not given".
UNSUPPORTED: Mapping[str, Callable[[object], bool]] = {
    "best_of": _beyond(1),
    "prompt_logprobs": _beyond(0),
    "functions": _beyond([]),
    "function_call": _beyond("auto", "none"),
    "suffix": _beyond(""),
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
    "typical_p": _beyond(1),
    "dry_multiplier": _beyond(0),
    "mirostat": _beyond(0),
    "xtc_probability": _beyond(0),
    "bad_words": _beyond([]),
    "allowed_token_ids": _beyond([]),
    "truncate_prompt_tokens": _beyond(-1),  # to the context, and what is longer is refused
    "n_predict": _beyond(-1),
    "chat_template": _beyond(""),
}


def refuse_unsupported(body: Mapping[str, object]) -> None:
    """400 for a field that asks for what is not implemented."""
    for name, asks in UNSUPPORTED.items():
        value = body.get(name)
        if name == "best_of" and value == body.get("n"):
            continue  # all of them are wanted, so none is chosen
        if value is not None and asks(value):
            raise unsupported(name, f"{name}={value!r}"[:200])
