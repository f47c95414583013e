"""Past messages as chat templates want them: plain text, our names, arguments in the template's own form, one system.

The API carries the arguments of a call as a JSON string. Most templates walk over an object, and a string breaks
them or is left out; some put the string into the text as it is, and an object breaks those. Nothing in a template
says which, so one small conversation is rendered both ways, once for each template.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from jinja2 import TemplateError

from backburner.api.body import strict_json
from backburner.api.errors import InvalidRequestError

ArgumentsForm = Literal["object", "string"]

# A template is a program that runs on the client's data: whatever it raises, the data does not suit it.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)

# Chat completions, and the two of Responses.
TEXT_PARTS = frozenset(("text", "input_text", "output_text"))


class Template(Protocol):
    """The part of mlx-lm's TokenizerWrapper that is used here."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any: ...


class ArgumentsForms:
    """In which form each template wants arguments, asked once."""

    def __init__(self) -> None:
        self._known: dict[object, ArgumentsForm] = {}

    def of(self, tokenizer: Template) -> ArgumentsForm:
        template = getattr(tokenizer, "chat_template", None)
        key = template if isinstance(template, str) else id(tokenizer)
        if key not in self._known:
            self._known[key] = probe(tokenizer)
        return self._known[key]


_KEY = "probe_key"
_OBJECT = {_KEY: "probe value"}
_STRING = json.dumps(_OBJECT)


def probe(tokenizer: Template) -> ArgumentsForm:
    as_object = _rendered(tokenizer, _OBJECT)
    as_string = _rendered(tokenizer, _STRING)
    takes_strings = _STRING in as_string
    if takes_strings and as_object == as_string:
        return "string"  # either will do; this one keeps the bytes, so that the prompt stays a prefix
    # An object in a template for strings comes out as Python writes it.
    takes_objects = _KEY in as_object and repr(_OBJECT) not in as_object
    return "string" if takes_strings and not takes_objects else "object"


def _rendered(tokenizer: Template, arguments: object) -> str:
    call = {"id": "call_0", "type": "function", "function": {"name": "probe", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "name": "probe", "content": "probe"},
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=False, tokenize=False))
    except TEMPLATE_ERRORS:
        return ""


def for_template(
    messages: Sequence[Mapping[str, Any]], tokenizer: Template, forms: ArgumentsForms
) -> list[dict[str, Any]]:
    """The messages of a request, whose shape is checked already, ready to be rendered."""
    return _with_one_system(
        [_message(message, f"messages[{i}]", tokenizer, forms) for i, message in enumerate(messages)]
    )


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Qwen's templates take one system message, and only as the first: those at the start become one.

    A later one becomes a user's, in the form in which Claude Code tells of its agents and skills. In its place: at the
    start it would change the beginning of the prompt, and with it all that is cached.
    """
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    said = "\n\n".join(m["content"] for m in messages[:first] if m["content"])
    system = [messages[0] | {"content": said}] if first else []
    return system + [
        _reminder(m) if m["role"] == "system" else m
        for m in messages[first:]
        if m["role"] != "system" or m["content"]
    ]


def _reminder(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": f"<system-reminder>\n{message['content']}\n</system-reminder>"}


def _message(
    message: Mapping[str, Any], param: str, tokenizer: Template, forms: ArgumentsForms
) -> dict[str, Any]:
    role = message["role"]
    result: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": text_of(message.get("content"), f"{param}.content"),
    }
    # DeepSeek's and llama.cpp's name, then OpenRouter's and vLLM's. Templates know the first.
    for field in ("reasoning_content", "reasoning"):
        if isinstance(message.get(field), str):
            result["reasoning_content"] = message[field]
            break
    if message.get("tool_calls"):
        form = forms.of(tokenizer)
        result["tool_calls"] = [
            _call(call, form, f"{param}.tool_calls[{i}].function.arguments")
            for i, call in enumerate(message["tool_calls"])
        ]
    for field in ("name", "tool_call_id"):
        if message.get(field) is not None:
            result[field] = message[field]
    return result


def _call(call: Mapping[str, Any], form: ArgumentsForm, param: str) -> dict[str, Any]:
    function = call["function"]
    value, text = arguments_of(function.get("arguments"), param)
    arguments = value if form == "object" else text
    known = {field: call[field] for field in ("id", "type") if call.get(field) is not None}
    return {**known, "function": {"name": function["name"], "arguments": arguments}}


def arguments_of(arguments: object, param: str) -> tuple[dict[str, Any], str]:
    """Replayed arguments as an object and as JSON text; 400 for what is neither."""
    if arguments is None or arguments == "":
        return {}, "{}"
    if isinstance(arguments, dict):
        return arguments, json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise InvalidRequestError(f"{param}: has to be a JSON object in a string", param=param)
    try:
        value = strict_json(arguments)
    except ValueError as e:
        raise InvalidRequestError(f"{param}: not valid JSON: {e}", param=param) from e
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{param}: has to be a JSON object", param=param)
    return value, arguments


def text_of(content: object, param: str) -> str:
    """A string, null, or a list of text parts, as one string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{param}: has to be a string or a list of text parts", param=param)
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise InvalidRequestError(
                f"{param}: part {i} is of type {kind!r}; this server reads text only", param=param
            )
        if not isinstance(text, str):
            raise InvalidRequestError(f"{param}: part {i} has no text", param=param)
        texts.append(text)
    return "".join(texts)
