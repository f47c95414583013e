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


def messages_of(instructions: str | None, items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raises InvalidRequestError with the item's place as `param`."""
    conversation = _Conversation()
    for i, item in enumerate(items):
        conversation.add(item, i)
    conversation.close_turn()
    told = [Message(role="system", content=instructions)] if instructions else []
    return told + conversation.messages


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


class _Conversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: _Turn | None = None
        self._call_ids: set[str] = set()

    def add(self, item: Mapping[str, Any], index: int) -> None:
        match item.get("type") or "message":
            case "message":
                self._add_message(_read(MessageItem, item, index), index)
            case "reasoning":
                self._add_thoughts(_read(ReasoningItem, item, index))
            case "function_call":
                self._add_call(_read(CallItem, item, index), index)
            case "function_call_output":
                self._add_output(_read(CallOutputItem, item, index), index)
            case "item_reference":
                raise InvalidRequestError(
                    f"input[{index}] refers to a stored item; this server is stateless: send the item itself",
                    param=f"input[{index}].type",
                )
            case other:
                raise InvalidRequestError(
                    f"input[{index}] is of type {other!r}; this server reads message, reasoning, function_call "
                    "and function_call_output",
                    param=f"input[{index}].type",
                )

    def close_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def _add_message(self, item: MessageItem, index: int) -> None:
        text = text_of(item.content, f"input[{index}].content")
        if item.role != "assistant":
            self.close_turn()
            self.messages.append(Message(role=item.role, content=text))
            return
        # What is said behind calls belongs to their turn; a second message does not.
        if self._turn is not None and self._turn.content and not self._turn.calls:
            self.close_turn()
        self._opened().content.append(text)

    def _add_thoughts(self, item: ReasoningItem) -> None:
        if self._turn is not None and (self._turn.content or self._turn.calls):
            self.close_turn()
        self._opened().thoughts.append(item.thoughts())

    def _add_call(self, item: CallItem, index: int) -> None:
        # Checked here, where its place is known; the form that the template wants is chosen later.
        _, arguments = arguments_of(item.arguments, f"input[{index}].arguments")
        function = FunctionCall(name=item.name, arguments=arguments)
        self._opened().calls.append(ToolCall(id=item.call_id, type="function", function=function))
        self._call_ids.add(item.call_id)

    def _add_output(self, item: CallOutputItem, index: int) -> None:
        if item.call_id not in self._call_ids:
            raise InvalidRequestError(
                f"input[{index}] answers call {item.call_id[:100]!r}, and no function_call before it has that call_id; "
                "this server is stateless: send the whole input",
                param=f"input[{index}].call_id",
            )
        self.close_turn()
        text = text_of(item.output, f"input[{index}].output")
        self.messages.append(Message(role="tool", content=text, tool_call_id=item.call_id))

    def _opened(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn


def _read(model: type[Item], item: Mapping[str, Any], index: int) -> Item:
    try:
        return model.model_validate(item)
    except ValidationError as e:
        raise from_validation(e, ("input", index)) from e
