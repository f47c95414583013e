"""The grammar of tool calls: names of tools, and arguments by their schemas, in the form that a template teaches.

An answer that is held to it is a call which `parsing` reads. Parameters come in the schema's order: the required ones
always, the others or not. What a schema says that cannot be kept is left out, as of any hint: a parameter whose schema
makes no sense is a text. A text ends at the newline before its closing tag and holds no parameter tags.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from backburner.api.parsing.arguments import resolve, type_names
from backburner.api.parsing.functions import is_tag_name
from backburner.api.parsing.markers import CALL_CLOSE, CALL_OPEN
from backburner.engine.grammar import JSON_OPTIONS, MAX_SCHEMA_CHARACTERS, check_rules
from backburner.errors import GrammarError

Form = Literal["xml", "hermes"]

# llguidance 1.9 gives up in the middle of an answer ("too many expressions constructed") on bounds from 52 on with
# tiny's vocabulary, and on none up to 64 with Qwen's.
MAX_COUNTED_CHARACTERS = 32

_SHARED = ("$defs", "definitions")
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "nullable"}
_TAGS = re.compile(r"</?parameter[=>]")

# A hint that cannot be kept is no reason to refuse the request.
_LENIENT = JSON_OPTIONS | {"lenient": True}

_TERMINALS = r"""
BODY: /(?s:.*)/ & ~/(?s:.*)(<\/parameter>|<parameter=)(?s:.*)/
TEXT: BODY "\n</parameter>\n"
KEY: /[^<>\s]{1,64}/
INTEGER: /-?(0|[1-9][0-9]{0,29})/
NUMBER: /-?(0|[1-9][0-9]{0,29})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?/
"""


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    form: Form,
    *,
    several: bool,
    marks_are_tokens: bool,
    schema: str | None,
) -> str:
    """An answer of one call, or of `several`; or, with a JSON schema, of JSON instead.

    marks_are_tokens: <tool_call> is a token of the model's vocabulary, and no other tokens may spell it.
    """
    write = _xml_function if form == "xml" else _hermes_call
    rules = [write(f"f{i}", tool["function"]) for i, tool in enumerate(tools)]
    answers = ["calls"] if schema is None else ["calls", f"%json {_strict(schema)}"]

    def text(opening: str, closing: str) -> str:
        lines = [
            # The blank line that a template puts behind thoughts.
            f'start: "\\n\\n"? ({" | ".join(answers)})',
            'calls: call ("\\n" call)*' if several else "calls: call",
            f'call: {opening} "\\n" ({" | ".join(f"f{i}" for i in range(len(rules)))}) "\\n" {closing}',
            *rules,
        ]
        return "\n".join(lines) + _TERMINALS

    plain = text(_literal(CALL_OPEN), _literal(CALL_CLOSE))
    if len(plain) > MAX_SCHEMA_CHARACTERS:
        raise GrammarError(
            f"The tools' schemas have {len(plain)} characters; calls can be held to at most {MAX_SCHEMA_CHARACTERS}."
        )
    # As a whole, and here: the engine would find out after the prompt is read.
    check_rules(plain)
    return text(CALL_OPEN, CALL_CLOSE) if marks_are_tokens else plain


def can_be_called(tool: Mapping[str, Any], form: Form) -> bool:
    """Whether a call of this tool can be written at all."""
    name = tool["function"]["name"]
    return is_tag_name(name) if form == "xml" else _encodes(name)


# The JSON form


def _hermes_call(rule: str, function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters")
    schema = (
        parameters if isinstance(parameters, Mapping) else {"properties": {}, "additionalProperties": False}
    )
    arguments = {k: v for k, v in schema.items() if k not in _SHARED} | {"type": "object"}
    call = _hermes_schema(function["name"], arguments)
    shared = {k: schema[k] for k in _SHARED if k in schema}
    text = _kept(shared | call) or _dump(_hermes_schema(function["name"], {"type": "object"}))
    return f"{rule}: %json {text}"


def _hermes_schema(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "x-guidance": _LENIENT,
    }


# The XML form


def _xml_function(rule: str, function: Mapping[str, Any]) -> str:
    """The rules of one function."""
    given = function.get("parameters")
    schema = given if isinstance(given, Mapping) else {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    required = schema.get("required")
    needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    parts, rules = [], []
    for i, (key, value) in enumerate(
        {**properties, **{key: {} for key in needed if key not in properties}}.items()
    ):
        if not is_tag_name(key):
            continue
        rules.append(_xml_parameter(f"{rule}p{i}", key, value, schema))
        parts.append(f"{rule}p{i}" if key in needed else f"{rule}p{i}?")
    if _is_open(schema):
        rules.append(f'{rule}other: "<parameter=" KEY ">\\n" TEXT')
        parts.append(f"{rule}other*")
    opening, closing = _literal(f"<function={function['name']}>\n"), _literal("</function>")
    return "\n".join([" ".join([f"{rule}:", opening, *parts, closing]), *rules])


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether it takes parameters that it does not name."""
    more = schema.get("additionalProperties")
    if more is None:
        elsewhere = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties")
        return "properties" not in schema and any(word in schema for word in elsewhere)
    return more is not False


def _xml_parameter(rule: str, key: str, schema: object, root: Mapping[str, Any]) -> str:
    opening = _literal(f"<parameter={key}>\n")
    values, rules = _Values(rule, root).of(schema)
    if "TEXT" in values:
        return f"{rule}: {opening} TEXT"
    return "\n".join([f"{rule}: {opening} ({' | '.join(values)})", *rules])


class _Values:
    """What one parameter may be, as alternatives; TEXT among them takes all in. Each ends with the closing tag."""

    def __init__(self, rule: str, root: Mapping[str, Any]) -> None:
        self._rule = rule
        self._root = root
        self._seen: set[int] = set()
        self._rules: list[str] = []
        self._counts = False  # a text's characters
        self._nests = False  # values in others

    def of(self, schema: object) -> tuple[list[str], list[str]]:
        """The alternatives, and the rules that they use."""
        found = list(dict.fromkeys(self._alternatives(schema)))
        # The lexer would take the beginning of a list or an object for the text's.
        return (["TEXT"], []) if self._counts and self._nests else (found, self._rules)

    def _alternatives(self, schema: object) -> list[str]:
        if not isinstance(schema, Mapping) or id(schema) in self._seen:
            return ["TEXT"]
        self._seen.add(id(schema))
        found = ["null"] if schema.get("nullable") is True else []
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            found += [v if isinstance(v, str) else _dump(v) for v in values]
            writable = [v for v in found if _encodes(v) and not _TAGS.search(v)]
            return [_literal(f"{v}\n</parameter>\n") for v in writable] or ["TEXT"]
        found = [_literal(f"{v}\n</parameter>\n") for v in found]
        if isinstance(reference := schema.get("$ref"), str):
            return found + self._alternatives(resolve(reference, self._root))
        for word in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(word)
            if isinstance(parts, list) and parts and (word != "allOf" or len(parts) == 1):
                return found + [value for part in parts for value in self._alternatives(part)]
        names = type_names(schema)
        if not names:
            return ["TEXT"]
        return found + [value for name in sorted(names) for value in self._of_type(name, schema)]

    def _of_type(self, name: str, schema: Mapping[str, Any]) -> list[str]:
        end = _literal("\n</parameter>\n")
        plain = not schema.keys() - _ANNOTATIONS
        match name:
            case "null":
                return [_literal("null\n</parameter>\n")]
            case "boolean":
                return [_literal("true\n</parameter>\n"), _literal("false\n</parameter>\n")]
            case "integer" | "number" if plain:
                return [f"{name.upper()} {end}"]
            case "string":
                return self._counted(schema)
        shared = {k: self._root[k] for k in _SHARED if k in self._root}
        text = _kept(shared | dict(schema) | {"type": name, "x-guidance": _LENIENT})
        if text is None:
            return ["TEXT"]
        self._nests |= name in ("array", "object")
        rule = f"{self._rule}v{len(self._rules)}"
        self._rules.append(f"{rule}: %json {text}")
        return [f"{rule} {end}"]

    def _counted(self, schema: Mapping[str, Any]) -> list[str]:
        """A text with those bounds of its length that can be counted to."""
        least, most = _count(schema.get("minLength"), 0), _count(schema.get("maxLength"), math.inf)
        low = least if least <= MAX_COUNTED_CHARACTERS else 0
        high = most if most <= MAX_COUNTED_CHARACTERS else ""
        if least > most or (low, high) == (0, ""):
            return ["TEXT"]
        self._counts = True
        # Terminals are written in capitals. They are greedy: one without the closing tag would take it for more text.
        name = f"{self._rule}n{len(self._rules)}".upper()
        self._rules.append(f"{name}: TEXT & /(?s:.{{{low},{high}}})\\n<\\/parameter>\\n/")
        return [name]


def _count(value: object, otherwise: float) -> float:
    return value if type(value) is int and value >= 0 else otherwise


def _kept(schema: Mapping[str, Any]) -> str | None:
    """A schema as text, if answers can be held to it."""
    try:
        text = _dump(schema)
        check_rules(f"start: %json {text}")
    except (GrammarError, ValueError, RecursionError):
        return None
    return text


def _strict(schema: str) -> str:
    parsed = json.loads(schema)
    return _dump((parsed if isinstance(parsed, dict) else {}) | {"x-guidance": JSON_OPTIONS})


def _dump(value: object) -> str:
    # Of what JSON leaves as it is, DEL alone is nothing that grammars can hold.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _literal(text: str) -> str:
    return _dump(text)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
