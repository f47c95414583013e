"""Arguments of a call as JSON text: values that came as plain text get the types of the tool's schema."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

# Beyond this, encoders and whoever reads the arguments run out of stack.
MAX_DEPTH = 100

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DIGITS_KEPT = 4000  # Python converts no longer integers
# Names that some clients take from Python, as mlx-lm does.
_ALIASES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # a whole one is one character to Python
_ESCAPED_POINTER = re.compile(r"~[01]")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a tool's schema says of its parameters. Schemas come from clients: nothing in them is certain."""

    schema: Schema = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]], name: str) -> "Parameters":
        """The parameters of a named tool; of an unknown one nothing is known."""
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, Mapping) and function.get("name") == name:
                parameters = function.get("parameters")
                return cls(parameters if isinstance(parameters, Mapping) else {})
        return cls()

    def json_of(self, values: Mapping[str, str]) -> str:
        items = (f"{_dump(key)}: {self._typed(key, value)}" for key, value in values.items())
        return "{" + ", ".join(items) + "}"

    def _typed(self, key: str, text: str) -> str:
        properties = self.schema.get("properties")
        if not isinstance(properties, Mapping) or key not in properties:
            return _dump(text)
        types, members = _gather(properties[key], self.schema)
        return members.json_of(text) or types.json_of(text) or _dump(text)


@dataclass(slots=True)
class _Members:
    """The values that an enum or const allows."""

    values: list[Any] = field(default_factory=list)

    def json_of(self, text: str) -> str | None:
        if text in self.values:
            return _dump(text)
        for value in self.values:
            if not isinstance(value, str) and text.strip() == _dump(value):
                return _dump(value)
        return None


@dataclass(slots=True)
class _Types:
    """The types that a schema allows. Where a string will do, a number or true is left a string: both are
    written alike, and only a string is byte-exact. null and JSON objects or arrays are hardly meant as strings.
    """

    names: set[str] = field(default_factory=set)

    def json_of(self, text: str) -> str | None:
        # Of a parameter without a type only what has a structure is taken for JSON, as mlx-lm does.
        names = self.names or {"string", "object", "array"}
        bare = text.strip()
        if "null" in names and bare == "null":
            return bare
        if "string" not in names:
            # A template that writes `value | string` teaches the model Python's True and False.
            if "boolean" in names and bare.lower() in ("true", "false"):
                return bare.lower()
            if "integer" in names and (integer := _integer(bare)) is not None:
                return integer
            if "number" in names and _NUMBER.fullmatch(bare) and math.isfinite(float(bare)):
                return bare
        for name, opening in (("object", "{"), ("array", "[")):
            if name in names and bare.startswith(opening):
                return _structure(bare)
        return None


def _integer(text: str) -> str | None:
    if len(text) > _DIGITS_KEPT:
        return None
    if _INTEGER.fullmatch(text):
        return text
    # To JSON Schema 5.0 and 1e3 are integers too.
    if _NUMBER.fullmatch(text) and (value := float(text)).is_integer():
        return str(int(value))
    return None


def _structure(text: str) -> str | None:
    """The text itself where it is strict JSON, so that no number changes its digits."""
    try:
        json.dumps(_load(text), ensure_ascii=False).encode()  # a ValueError with half of a surrogate pair
    except ValueError:
        pass
    else:
        return text
    try:
        return _dump(_load(text, strict=False))  # a line break inside of a string, or that half
    except ValueError:
        return None


def _gather(schema: object, root: Schema) -> tuple[_Types, _Members]:
    """The types and values allowed, through references and alternatives; each schema is looked at once."""
    types, members = _Types(), _Members()
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        values = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(values, list):
            members.values += values
        types.names |= type_names(node)
        for combination in ("anyOf", "oneOf", "allOf"):
            alternatives = node.get(combination)
            waiting += alternatives if isinstance(alternatives, list) else []
        reference = node.get("$ref")
        if isinstance(reference, str):
            waiting.append(resolve(reference, root))
    return types, members


def type_names(schema: Schema) -> set[str]:
    """The types that one schema allows by itself; none: it does not say."""
    declared = schema.get("type")
    names = {n for n in (declared if isinstance(declared, list) else [declared]) if isinstance(n, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        names = names or {_type_name(value) for value in values}
    names = names or {n for n, sign in (("object", "properties"), ("array", "items")) if sign in schema}
    if schema.get("nullable") is True:
        names.add("null")
    return {_ALIASES.get(name, name) for name in names}


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def resolve(reference: str, root: Schema) -> object:
    """Follows #/$defs/Name within the tool's own schema; no other reference is looked up."""
    node: object = root
    if not reference.startswith("#"):
        return None
    for part in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(node, Mapping):
            return None
        node = node.get(_ESCAPED_POINTER.sub(lambda m: "~" if m[0] == "~0" else "/", part))
    return node


def hermes_call(text: str) -> tuple[str, str]:
    """Name and arguments of {"name": ..., "arguments": {...}}. Raises ValueError."""
    call = _load(text, strict=False)
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("a call has no name")
    name.encode()  # half of a surrogate pair is a ValueError
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str) and arguments:
        arguments = _load(arguments, strict=False)  # encoded twice, as in the API's own form
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments are no object")
    return name, _dump(arguments)


def _dump(value: object) -> str:
    """Half of a surrogate pair is no character: whoever gets one, this server too, could not send it back."""
    return _HALF_PAIR.sub("\ufffd", json.dumps(value, ensure_ascii=False))


def _load(text: str, *, strict: bool = True) -> Any:
    """JSON without Python's extensions; ValueError for whatever could not be written as JSON again."""
    try:
        value = json.loads(text, strict=strict, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as e:
        raise ValueError("nested too deep") from e
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        layer = [
            child
            for node in layer
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not layer:
            return
    raise ValueError("nested too deep")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value
