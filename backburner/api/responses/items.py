"""Input items as the messages of a chat: what OpenAI splits into items is one turn of the assistant here."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ValidationError

from backburner.api.errors import InvalidRequestError, from_validation
from backburner.api.parsing.history import arguments_of, text_of
from backburner.api.responses.thoughts import unpack_thoughts
from backburner.api.schemas import Body, FunctionCall, Message, ToolCall


def _non_empty(text: str) -> str:
    if not text:
        raise ValueError("has to be a non-empty string")
    return text


NonEmpty = Annotated[str, AfterValidator(_non_empty)]


class MessageItem(Body):
    role: Literal["user", "assistant", "system", "developer"]
    content: Any = None


class ReasoningPart(Body):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ReasoningItem(Body):
    content: list[ReasoningPart] | None = None
    summary: list[ReasoningPart] | None = None
    encrypted_content: str | None = None

    def thoughts(self) -> str:
        """The thoughts in the best form that the client kept."""
        if self.content:
            return "".join(part.text for part in self.content)
        kept = unpack_thoughts(self.encrypted_content)
        return kept if kept is not None else "\n\n".join(part.text for part in self.summary or ())


class CallItem(Body):
    call_id: NonEmpty
    name: NonEmpty
    arguments: Any = None


class CallOutputItem(Body):
    call_id: NonEmpty
    output: Any = None


Item = TypeVar("Item", bound=Body)


class _Turn:
    """The assistant's turn that is being put together."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.content: list[str] = []
        self.calls: list[ToolCall] = []

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self.content),
            reasoning_content="".join(self.thoughts) or None,
            tool_calls=self.calls or None,
        )


def messages_of(instructions: str | None, items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raises InvalidRequestError with the item's place as `param`."""
    messages: list[Message] = []
    turn: _Turn | None = None
    call_ids: set[str] = set()

    def close_turn() -> None:
        nonlocal turn
        if turn is not None:
            messages.append(turn.message())
            turn = None

    for i, item in enumerate(items):
        match item.get("type", "message"):
            case "message":
                message = _read(MessageItem, item, i)
                text = text_of(message.content, f"input[{i}].content")
                if message.role == "assistant":
                    # What is said behind calls belongs to their turn; a second message does not.
                    if turn is not None and turn.content and not turn.calls:
                        close_turn()
                    turn = turn or _Turn()
                    turn.content.append(text)
                else:
                    close_turn()
                    messages.append(Message(role=message.role, content=text))
            case "reasoning":
                thoughts = _read(ReasoningItem, item, i).thoughts()
                if turn is not None and (turn.content or turn.calls):
                    close_turn()
                turn = turn or _Turn()
                turn.thoughts.append(thoughts)
            case "function_call":
                call = _read(CallItem, item, i)
                # Here, where its place is known; the template's form is chosen later.
                _, arguments = arguments_of(call.arguments, f"input[{i}].arguments")
                turn = turn or _Turn()
                turn.calls.append(
                    ToolCall(
                        id=call.call_id,
                        type="function",
                        function=FunctionCall(name=call.name, arguments=arguments),
                    )
                )
                call_ids.add(call.call_id)
            case "function_call_output":
                output = _read(CallOutputItem, item, i)
                if output.call_id not in call_ids:
                    raise InvalidRequestError(
                        f"input[{i}] answers call {output.call_id[:100]!r}, and no function_call before it has that "
                        "call_id; this server is stateless: send the whole input",
                        param=f"input[{i}].call_id",
                    )
                close_turn()
                text = text_of(output.output, f"input[{i}].output")
                messages.append(Message(role="tool", content=text, tool_call_id=output.call_id))
            case "item_reference":
                raise InvalidRequestError(
                    f"input[{i}] refers to a stored item; this server is stateless: send the item itself",
                    param=f"input[{i}].type",
                )
            case other:
                raise InvalidRequestError(
                    f"input[{i}] is of type {other!r}; this server reads message, reasoning, function_call and "
                    "function_call_output",
                    param=f"input[{i}].type",
                )
    close_turn()
    return _with_instructions(instructions, messages)


def _with_instructions(instructions: str | None, messages: list[Message]) -> list[Message]:
    """Templates take one system message, and only as the first: those at the start become one."""
    said = [instructions] if instructions else []
    first = 0
    while first < len(messages) and messages[first].role in ("system", "developer"):
        said.append(messages[first].content)
        first += 1
    return [*([Message(role="system", content="\n\n".join(said))] if said else []), *messages[first:]]


def _read(model: type[Item], item: Mapping[str, Any], index: int) -> Item:
    try:
        return model.model_validate(item)
    except ValidationError as e:
        raise from_validation(e, ("input", index)) from e
