"""The assistant's turn that a conversation asks for: its prompt, how its text is to be read, and what it is held to."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backburner.api.errors import InvalidRequestError
from backburner.api.parsing import history
from backburner.api.parsing.identity import new_call_id
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.thinking import Thinking, thinking_of
from backburner.api.schemas import ChatBody
from backburner.api.settings import Api
from backburner.engine.request import Grammar

# Arguments of apply_chat_template itself; through chat_template_kwargs a client could replace the template.
RESERVED_TEMPLATE_KWARGS = frozenset(
    (
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "processor_kwargs",
    )
)

THOUGHT_OVER = "\n</think>\n\n"

# OpenAI's levels; the models here think or they do not.
NO_THINKING_EFFORTS = frozenset(("none", "minimal"))


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model is to continue, and how to read it."""

    text: str  # the rendered conversation with what the answer is made to begin with
    forced: str  # that beginning
    thinking: Thinking
    tools: Sequence[Mapping[str, Any]]  # that the answer may call
    parallel: bool
    grammar: Grammar | None

    def parser(self, new_id: Callable[[], str] = new_call_id) -> Parser:
        return Parser(
            self.thinking,
            tools=self.tools,
            parses_calls=bool(self.tools),
            parallel=self.parallel,
            new_id=new_id,
        )


def chat_turn(api: Api, body: ChatBody) -> Turn:
    """Raises InvalidRequestError for what the template refuses and for what cannot be kept."""
    choice = body.tool_choice
    tools: list[dict[str, Any]] = [] if choice == "none" else body.tools or []
    text = _rendered(api, body, tools)
    thinking = thinking_of(text)
    forced = _forced_call(api, body) if tools and choice not in (None, "auto") else ""
    if forced and thinking == "open":
        text, thinking = text + THOUGHT_OVER, "none"
    grammar = _grammar(body, thinking)
    if grammar is not None and tools:
        raise InvalidRequestError(
            "response_format and tools together are not supported: send tool_choice 'none' to get JSON",
            param="response_format",
            code="unsupported_parameter",
        )
    return Turn(text + forced, forced, thinking, tools, body.parallel_tool_calls is not False, grammar)


def _rendered(api: Api, body: ChatBody, tools: Sequence[Mapping[str, Any]]) -> str:
    kwargs: dict[str, Any] = dict(api.settings.chat_template_kwargs)
    if body.reasoning_effort is not None:
        kwargs["enable_thinking"] = body.reasoning_effort not in NO_THINKING_EFFORTS
    kwargs |= body.chat_template_kwargs or {}
    reserved = sorted(RESERVED_TEMPLATE_KWARGS.intersection(kwargs))
    if reserved:
        raise InvalidRequestError(f"{reserved[0]!r} cannot be set here", param="chat_template_kwargs")
    continues = bool(body.continue_final_message)
    if continues and body.messages[-1].role != "assistant":
        raise InvalidRequestError(
            "continue_final_message continues the assistant's message, and the last one is not",
            param="continue_final_message",
        )
    generates = body.add_generation_prompt
    if continues and generates:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            param="add_generation_prompt",
        )
    messages = history.for_template(
        [message.model_dump() for message in body.messages], api.tokenizer, api.arguments_forms
    )
    try:
        text = api.tokenizer.apply_chat_template(
            messages,
            tools=list(tools) or None,
            add_generation_prompt=not continues if generates is None else generates,
            continue_final_message=continues,
            tokenize=False,
            **kwargs,
        )
    except history.TEMPLATE_ERRORS as e:
        raise InvalidRequestError(
            f"the chat template refuses these messages: {e}", param="messages", code="template_error"
        ) from e
    return str(text)


def _forced_call(api: Api, body: ChatBody) -> str:
    """The beginning of a call in the form that the model's template teaches.

    It ends where a token ends in the whole call too: behind half a token a model goes on as it never learned to.
    """
    choice = body.tool_choice
    names = [tool["function"]["name"] for tool in body.tools or []]
    name = names[0] if len(names) == 1 else None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        if name not in names:
            raise InvalidRequestError(
                f"tool_choice names {name!r}, which is not one of the tools: {', '.join(names)[:500]}",
                param="tool_choice",
            )
    template = str(getattr(api.tokenizer, "chat_template", None) or "")
    if "<function=" in template or not template:
        return "<tool_call>\n<function" + (f"={name}>\n" if name else "")
    return (
        f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'
        if name
        else '<tool_call>\n{"name": "'
    )


def _grammar(body: ChatBody, thinking: Thinking) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    after = "</think>" if thinking == "open" else None
    if wanted.type == "json_object":
        return Grammar(wanted.object_schema, after)
    assert wanted.json_schema is not None
    return Grammar(wanted.json_schema.text, after)
