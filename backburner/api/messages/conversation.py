"""Anthropic's system prompt, messages and tools in the words of chat.

One message here may be several there: results of tools stand among the user's blocks, and are messages of their own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from backburner.api.errors import InvalidRequestError
from backburner.api.messages.schemas import InputBody, InputMessage, MessagesBody, ToolChoice
from backburner.api.schemas import ChatBody, FunctionCall, JsonSchema, Message, ResponseFormat, ToolCall

# Claude Code puts this line first, with a number that changes each time: nothing after it would be found cached.
BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


def as_chat(body: InputBody) -> ChatBody:
    """The same request; all of its parts but the messages' content are validated already."""
    messages = messages_of(body)
    choice = body.tool_choice
    given: dict[str, Any] = {}
    if isinstance(body, MessagesBody):
        given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        given["stop"] = body.stop_sequences
    # Not the server's default: who does not ask for thoughts expects none, and has set max_tokens for the answer alone.
    given["chat_template_kwargs"] = {"enable_thinking": bool(body.thinking and body.thinking.on)}
    if body.format is not None:
        schema = JsonSchema.model_construct(text=body.format.text)
        given["response_format"] = ResponseFormat.model_construct(type="json_schema", json_schema=schema)
    return ChatBody.model_construct(
        **given,
        messages=messages,
        tools=[tool.as_function() for tool in body.tools or ()],
        tool_choice=None if choice is None else _chat_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        continue_final_message=messages[-1].role == "assistant",
    )


def _chat_choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def messages_of(body: InputBody) -> list[Message]:
    messages = _system_messages(body.system, "system")
    names: dict[str, str] = {}  # of the tools called so far, by the calls' ids
    for i, message in enumerate(body.messages):
        param = f"messages[{i}].content"
        if message.role == "system":
            messages += _system_messages(message.content, param)
        elif message.role == "assistant":
            messages.append(_assistant_message(message, param, names))
        else:
            messages += _user_messages(message, param, names)
    if messages and messages[-1].role == "assistant":
        _check_last(messages)
    if all(message.role == "system" for message in messages):
        raise InvalidRequestError("messages: there is nothing to answer", param="messages")
    return messages


def _check_last(messages: list[Message]) -> None:
    """The last message is the assistant's: the answer goes on where it ends."""
    last = messages[-1]
    if last.tool_calls:
        raise InvalidRequestError(
            "messages: the last one has tool_use blocks; each needs a tool_result in a message after it",
            param="messages",
        )
    if not str(last.content).strip():
        messages.pop()  # nothing to go on with: a turn of its own


def _system_messages(content: object, param: str) -> list[Message]:
    """One, or none if it says nothing."""
    blocks = (BILLING_LINE.sub("", _text_of(block, param)) for block in _blocks(content, param))
    told = "\n\n".join(text for text in blocks if text)
    return [Message(role="system", content=told)] if told else []


def _assistant_message(message: InputMessage, param: str, names: dict[str, str]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(_blocks(message.content, param)):
        at = f"{param}[{i}]"
        match block.get("type"):
            case "text":
                texts.append(_string(block, "text", at))
            case "thinking":
                thoughts.append(_string(block, "thinking", at))
            case "redacted_thinking":
                pass  # encrypted for Anthropic's own models
            case "tool_use":
                call = _call(block, at)
                names[str(call.id)] = call.function.name
                calls.append(call)
            case kind:
                raise _unreadable(kind, at)
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _call(block: Mapping[str, Any], param: str) -> ToolCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{param}.input: has to be an object", param=f"{param}.input")
    function = FunctionCall(name=_string(block, "name", param), arguments=arguments)
    return ToolCall(id=_string(block, "id", param), type="function", function=function)


def _user_messages(message: InputMessage, param: str, names: Mapping[str, str]) -> list[Message]:
    messages: list[Message] = []
    texts: list[str] = []

    def say() -> None:
        if texts:
            messages.append(Message(role="user", content="\n".join(texts)))
            texts.clear()

    for i, block in enumerate(_blocks(message.content, param)):
        at = f"{param}[{i}]"
        if block.get("type") == "tool_result":
            say()
            messages.append(_result(block, at, names))
        else:
            texts.append(_text_of(block, at))
    say()
    return messages


def _result(block: Mapping[str, Any], param: str, names: Mapping[str, str]) -> Message:
    call_id = _string(block, "tool_use_id", param)
    parts = _blocks(block.get("content"), f"{param}.content")
    text = "\n".join(_text_of(part, f"{param}.content[{i}]") for i, part in enumerate(parts))
    if block.get("is_error"):
        text = f"Error: {text}"
    return Message(role="tool", tool_call_id=call_id, name=names.get(call_id), content=text)


def _blocks(content: object, param: str) -> Sequence[Mapping[str, Any]]:
    """A string is one block of text; none is none."""
    if content is None:
        return ()
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequestError(f"{param}: has to be a string or a list of content blocks", param=param)
    return content


def _text_of(block: Mapping[str, Any], param: str) -> str:
    if block.get("type") != "text":
        raise _unreadable(block.get("type"), param)
    return _string(block, "text", param)


def _string(block: Mapping[str, Any], field: str, param: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{param}.{field}: has to be a string", param=f"{param}.{field}")
    return value


def _unreadable(kind: object, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param}: a block of type {str(kind)[:100]!r} is not supported here; this server reads text only",
        param=param,
    )
