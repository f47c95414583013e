"""The body of a Responses request: what is read, in which range, and what is refused by name."""

import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from backburner.api.errors import InvalidRequestError, unsupported
from backburner.api.schemas import MAX_TOP_LOGPROBS, Body, GenerationBody, refuse_unsupported, schema_text

# What makes OpenAI send logprobs, beside top_logprobs.
INCLUDES_LOGPROBS = "message.output_text.logprobs"
# What makes OpenAI send thoughts in a form that a client which keeps no thoughts sends back.
INCLUDES_THOUGHTS = "reasoning.encrypted_content"

log = logging.getLogger(__name__)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _list_of_items(value: object) -> object:
    """A string is a user's message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ValueError("has to be a string or a list of at least one item")
    return value


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Functions go to the template in their own order of keys; of others only the type is read."""
    kind, name = tool.get("type"), tool.get("name")
    if not isinstance(kind, str) or not kind:
        raise ValueError("type has to be a non-empty string")
    if kind == "function" and (not isinstance(name, str) or not name):
        raise ValueError("name has to be a non-empty string")
    return tool


def _functions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools without those of other types, some of which Codex always sends: the model is not told of them."""
    functions = [tool for tool in tools if tool["type"] == "function"]
    others = ", ".join(sorted({repr(tool["type"]) for tool in tools if tool["type"] != "function"}))[:300]
    if others and not functions:
        raise ValueError(f"tools of type {others} are not supported: this server has 'function' only")
    if others:
        log.info("a request's tools of type %s are left out: this server has 'function' only", others)
    return functions


Tool = Annotated[dict[str, Any], AfterValidator(_check_tool)]


def _check_tool_choice(choice: object) -> object:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return choice
    raise ValueError('has to be "auto", "none", "required" or {"type": "function", "name": ...}')


class TextFormat(Body):
    """text.format, in which a schema lies flat."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    text: Annotated[str, BeforeValidator(schema_text)] | None = Field(None, validation_alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.text is None:
            raise ValueError("schema is required with type json_schema")
        return self

    def schema_object(self) -> Any:
        return None if self.text is None else json.loads(self.text)


class TextOptions(Body):
    format: TextFormat | None = None


class Reasoning(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(GenerationBody):
    """The sampling fields of chat are read here as well: local clients send them."""

    n: int | None = Field(None, ge=1, le=1)
    input: Annotated[list[dict[str, Any]], BeforeValidator(_list_of_items)]
    instructions: str | None = None
    tools: Annotated[list[Tool], AfterValidator(_functions)] | None = None
    tool_choice: Annotated[Any, AfterValidator(_check_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            # No ValueError: pydantic would not say which field is to blame.
            raise InvalidRequestError(
                "tool_choice asks for a call, and there are no tools", param="tool_choice"
            )
        return self

    @property
    def format(self) -> TextFormat | None:
        return self.text.format if self.text else None

    @property
    def logprobs_wanted(self) -> int | None:
        asked = self.top_logprobs or INCLUDES_LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None

    @property
    def wants_thoughts_back(self) -> bool:
        return INCLUDES_THOUGHTS in (self.include or ())


def refuse_unkept(fields: Mapping[str, object]) -> None:
    """400 for what needs stored responses, and for what would change the answer and is not implemented."""
    for name in ("previous_response_id", "conversation"):
        if fields.get(name) is not None:
            raise InvalidRequestError(
                f"{name} is not supported: this server is stateless: send the whole input",
                param=name,
                code="unsupported_parameter",
            )
    if fields.get("background"):
        raise unsupported("background", "background=true")
    if fields.get("prompt") is not None:
        raise unsupported("prompt", "a stored prompt")
    if fields.get("truncation") not in (None, "disabled"):
        raise InvalidRequestError(
            f"truncation={fields['truncation']!r} is not supported: nothing is left out of an input; "
            "send 'disabled'"[:300],
            param="truncation",
            code="unsupported_parameter",
        )
    refuse_unsupported(fields)
