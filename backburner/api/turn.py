"""The assistant's turn that a conversation asks for: its prompt, how its text is to be read, and what it is held to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backburner.api.call_grammar import Form, call_grammar, can_be_called
from backburner.api.errors import InvalidRequestError
from backburner.api.parsing import history
from backburner.api.parsing.identity import new_call_id
from backburner.api.parsing.markers import CALL_OPEN, FUNCTION_OPEN, THINK_CLOSE
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.thinking import Thinking, thinking_of
from backburner.api.schemas import ChatBody
from backburner.api.settings import Api
from backburner.engine.grammar import ANY_OBJECT
from backburner.engine.request import Grammar
from backburner.errors import GrammarError

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
        "sanitize_control_tokens",
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

# OpenAI's levels; the models here think or they do not.
NO_THINKING_EFFORTS = frozenset(("none", "minimal"))


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model is to continue, and how to read it."""

    text: str  # the rendered conversation
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
    grammar = _json_grammar(body, THINK_CLOSE if thinking == "open" else None)
    if tools and (grammar is not None or choice not in (None, "auto")):
        grammar = _call_grammar(api, body, grammar, THINK_CLOSE if thinking == "open" else None)
    return Turn(text, thinking, tools, body.parallel_tool_calls is not False, grammar)


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


def _call_grammar(api: Api, body: ChatBody, json_grammar: Grammar | None, after: str | None) -> Grammar:
    """Holds the answer to calls; with tool_choice auto, to calls or the JSON that response_format asks for."""
    choice, tools = body.tool_choice, body.tools or []
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    if named is not None:
        names = [tool["function"]["name"] for tool in tools]
        tools = [tool for tool in tools if tool["function"]["name"] == named][:1]
        if not tools:
            raise InvalidRequestError(
                f"tool_choice names {named!r}, which is not one of the tools: {', '.join(names)[:500]}",
                param="tool_choice",
            )
    template = str(getattr(api.tokenizer, "chat_template", None) or "")
    form: Form = "xml" if FUNCTION_OPEN in template or not template else "hermes"
    callable_tools = [tool for tool in tools if can_be_called(tool, form)]
    if not callable_tools:
        raise InvalidRequestError("no tool has a name that a call can be written with", param="tools")
    schema = None
    if json_grammar is not None and choice in (None, "auto"):
        schema = json_grammar.json_schema or ANY_OBJECT
    mark = api.tokenizer.encode(CALL_OPEN, add_special_tokens=False)
    try:
        rules = call_grammar(
            callable_tools,
            form,
            several=named is None and body.parallel_tool_calls is not False,
            marks_are_tokens=len(mark) == 1,
            schema=schema,
        )
    except GrammarError as e:
        raise InvalidRequestError(str(e), param="tools") from e
    # A call that thoughts break off with is the answer to the parser, and nothing is to follow it.
    return Grammar(after=after, rules=rules, opening=mark[0] if len(mark) == 1 else None)


def _json_grammar(body: ChatBody, after: str | None) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar(wanted.object_schema, after)
    assert wanted.json_schema is not None
    return Grammar(wanted.json_schema.text, after)
