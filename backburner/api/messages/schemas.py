"""Anthropic's request bodies as pydantic models."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from backburner.api.errors import unsupported
from backburner.api.schemas import Body, ModelBody, Stops, schema_text


class InputMessage(Body):
    """Only the shape is checked here; `messages.conversation` reads the content."""

    role: Literal["user", "assistant", "system"]
    content: Any = None


def _refuse_server_tool(tool: object) -> object:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, "custom"):
        raise ValueError(
            f"the tool type {str(kind)[:100]!r} is not supported; this server has custom tools only"
        )
    return tool


class Tool(Body):
    """The schema goes to the template as it came, in its own order of keys."""

    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any]

    def as_function(self) -> dict[str, Any]:
        """The tool in the words of chat."""
        described = {} if self.description is None else {"description": self.description}
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": self.input_schema},
        }


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if self.type == "tool" and not self.name:
            raise ValueError("name is required with type tool")
        return self


class Thinking(Body):
    """`budget_tokens` is not read: these models cannot be told when to stop thinking."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]

    @property
    def on(self) -> bool:
        return self.type in ("enabled", "adaptive")


class OutputFormat(Body):
    type: Literal["json_schema"]
    text: Annotated[str, BeforeValidator(schema_text)] = Field(validation_alias="schema")


class OutputConfig(Body):
    """`effort` is not read: the models here think or they do not, and `thinking` says which."""

    format: OutputFormat | None = None


class InputBody(ModelBody):
    """What is read by the model: all that counting tokens needs."""

    system: Any = None
    messages: list[InputMessage] = Field(min_length=1)
    tools: list[Annotated[Tool, BeforeValidator(_refuse_server_tool)]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where it stood while it was in beta

    @property
    def format(self) -> OutputFormat | None:
        return (self.output_config and self.output_config.format) or self.output_format

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not self.tools:
            raise ValueError("tool_choice asks for a call, and there are no tools")
        return self


class MessagesBody(InputBody):
    max_tokens: int = Field(ge=1)
    stop_sequences: Stops = Field(default_factory=list)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # 0 and -1: off


def refuse_unkept(fields: Mapping[str, object]) -> None:
    """400 for what would change the answer and is not implemented."""
    if fields.get("mcp_servers"):
        raise unsupported("mcp_servers", "mcp_servers: calling MCP servers")
