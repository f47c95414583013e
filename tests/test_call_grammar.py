"""Calls that an answer is held to: whatever is drawn, they are read as calls, with what their schemas ask for."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backburner.api.call_grammar import MAX_COUNTED_CHARACTERS, call_grammar, can_be_called
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.pieces import Message, join
from backburner.engine.grammar import MAX_SCHEMA_CHARACTERS, GrammarGuide, Grammars
from backburner.engine.request import Grammar
from backburner.errors import GrammarError
from backburner.model.load import TINY, read_tokenizer
from tests.scripted_engine import bytes_of, tiny_tokenizer, tokens_of
from tests.test_api_cases import call_text

VOCABULARY = len(tiny_tokenizer())
GRAMMARS = Grammars(tiny_tokenizer(), VOCABULARY)


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def rules(*tools: dict[str, Any], form: Any = "xml", several: bool = False, schema: str | None = None) -> str:
    return call_grammar(tools, form, several=several, marks_are_tokens=True, schema=schema)


def guide(text: str) -> GrammarGuide:
    made = GRAMMARS.guide(Grammar(rules=text))
    assert made is not None
    return made


def allowed(guide: GrammarGuide) -> set[int]:
    row = guide.mask(mx.zeros(VOCABULARY))
    return set(np.flatnonzero(np.isfinite(np.array(row))).tolist())


def admits(text: str, answer: str) -> bool:
    """Whether the answer may be written, and end there."""
    made = guide(text)
    for token in tokens_of(answer):
        if token not in allowed(made):
            return False
        made.push(token)
    return bool(allowed(made) & set(tiny_tokenizer().eos_token_ids))


def read(answer: str, *tools: dict[str, Any], parallel: bool = True) -> Message:
    parser = Parser("none", tools=tools, parses_calls=True, parallel=parallel)
    return join([*parser.feed(answer), *parser.finish()])


CLOSING = {token for text in ("\n</parameter>\n", '"}', "]", "}", "1", '"') for token in tokens_of(text)}


def drawn(text: str, seed: int, limit: int = 400) -> str | None:
    """An answer by a model that knows nothing, and is in a hurry; None: it did not come to its end."""
    chance, made, tokens = random.Random(seed), guide(text), []
    ends = set(tiny_tokenizer().eos_token_ids)
    while len(tokens) < limit:
        may = allowed(made)
        assert may
        wanted = sorted(may & ends or (may & CLOSING if chance.random() < 0.7 else ()) or may)
        token = chance.choice(wanted)
        if token in ends:
            return b"".join(map(bytes_of, tokens)).decode()
        made.push(token)
        tokens.append(token)
    return None


TYPES = tool(
    "types",
    {
        "type": "object",
        "$defs": {"Point": schema(["x"], x={"type": "integer", "minimum": 1, "maximum": 9})},
        "properties": {
            "kind": {"enum": ["a", "é b", 5, None]},
            "count": {"type": "integer"},
            "share": {"type": "number", "description": "of all"},
            "on": {"type": "boolean"},
            "point": {"$ref": "#/$defs/Point"},
            "names": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
            "size": {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": "null"}]},
            "short": {"type": "string", "minLength": 1, "maxLength": 3},
        },
        "required": ["kind", "count", "share", "on", "point", "names", "size", "short"],
    },
)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_drawn_is_a_call_whose_arguments_have_the_schemas_types(seed: int) -> None:
    answer = drawn(rules(TYPES), seed)
    assert answer is not None
    message = read(answer, TYPES)
    assert message.content == ""
    (call,) = message.tool_calls
    found = json.loads(call.arguments)
    assert list(found) == list(TYPES["function"]["parameters"]["properties"])
    assert found["kind"] in ("a", "é b", 5, None)
    assert type(found["count"]) is int
    assert type(found["share"]) in (int, float)
    assert type(found["on"]) is bool
    assert 1 <= found["point"]["x"] <= 9
    assert found["names"]
    assert set(found["names"]) <= {"x", "y"}
    assert found["size"] is None or 10 <= found["size"] <= 99
    assert 1 <= len(found["short"]) <= 3


@pytest.mark.parametrize("form", ["xml", "hermes"])
@pytest.mark.parametrize("seed", range(3))
def test_of_several_tools_one_of_those_that_exist_is_called(form: Any, seed: int) -> None:
    tools = [
        tool("now", schema()),
        tool("look", schema(["n"], n={"type": "integer", "maximum": 9, "minimum": 0})),
    ]
    answer = drawn(rules(*tools, form=form), seed)
    assert answer is not None
    (call,) = read(answer, *tools).tool_calls
    arguments = json.loads(call.arguments)
    assert call.name in ("now", "look")
    assert call.name == "now" or 0 <= arguments["n"] <= 9


LOOK = tool("look", schema(["path"], path={"type": "string"}, count={"type": "integer"}))


@pytest.mark.parametrize(
    "value",
    ["", "x", "    if x:\n", "\n\nx\n\n", "a</b> </function>", "é🙂 日本", "5", '{"a": "\\n"}', "<param"],
)
def test_a_free_text_may_be_anything_and_ends_before_its_closing_tag(value: str) -> None:
    answer = call_text("look", path=value)
    assert admits(rules(LOOK), answer)
    assert json.loads(read(answer, LOOK).tool_calls[0].arguments) == {"path": value}


def sized(count: int) -> str:
    """A text of so many characters, some of which could begin its closing tag."""
    return ("aé🙂\n</par" * count)[:count]


@pytest.mark.parametrize("bound", range(MAX_COUNTED_CHARACTERS + 9))
def test_bounds_of_a_text_are_kept_and_its_call_comes_to_its_end(bound: int) -> None:
    counted = bound <= MAX_COUNTED_CHARACTERS
    for least, most in ((0, bound), (bound, None), (bound // 2, bound)):
        bounds = {"minLength": least} | ({} if most is None else {"maxLength": most})
        look = tool("look", schema(["path"], path={"type": "string"} | bounds))
        for length in {0, bound // 2, bound - 1, bound, bound + 1, bound + 30} - {-1}:
            fits = (least <= length or least > MAX_COUNTED_CHARACTERS) and (
                not counted or most is None or length <= most
            )
            answer = call_text("look", path=sized(length))
            assert admits(rules(look), answer) == fits, (bounds, length)
            assert json.loads(read(answer, look).tool_calls[0].arguments) == {"path": sized(length)}


def test_bounds_of_several_texts_are_kept_at_once() -> None:
    keys = [f"p{i}" for i in range(16)]
    bounds = {"type": "string", "minLength": 1, "maxLength": MAX_COUNTED_CHARACTERS}
    text = rules(tool("look", schema(keys, **dict.fromkeys(keys, bounds))))
    assert admits(text, call_text("look", **dict.fromkeys(keys, sized(MAX_COUNTED_CHARACTERS))))
    assert not admits(text, call_text("look", **dict.fromkeys(keys, sized(MAX_COUNTED_CHARACTERS + 1))))


@pytest.mark.parametrize(
    "other",
    [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object", "properties": {"x": {"type": "integer"}}},
        {"type": "integer"},
        {"type": "number", "minimum": -10_000},
        {"enum": ["none at all"]},
    ],
)
def test_beside_a_text_with_bounds_other_values_may_come_whole(other: Any) -> None:
    text = rules(tool("look", schema(["path"], path={"anyOf": [{"type": "string", "maxLength": 3}, other]})))
    values = {"array": "[1, 2, 3]", "object": '{"x": 5}', "integer": "-12345", "number": "1234.5"}
    assert admits(text, call_text("look", path=values.get(other.get("type"), "none at all")))
    assert admits(text, call_text("look", path="abc"))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Let me see.",
        call_text("other", path="x"),
        call_text("look"),
        call_text("look", count="1"),
        call_text("look", path="x", count="many"),
        call_text("look", path="x", more="1"),
        call_text("look", path="a </parameter> b"),
        call_text("look", path="x").removesuffix("</tool_call>"),
        call_text("look", path="x") + "\n" + call_text("look", path="x"),
    ],
)
def test_what_is_no_such_call_cannot_be_written(answer: str) -> None:
    assert not admits(rules(LOOK), answer)


def test_optional_parameters_may_be_left_out_and_several_calls_may_follow() -> None:
    one, two = call_text("look", path="x"), call_text("look", path="x", count="-12")
    assert admits(rules(LOOK), one)
    assert admits(rules(LOOK), "\n\n" + two)
    assert admits(rules(LOOK, several=True), f"{one}\n{two}\n{one}")
    assert admits(rules(tool("now")), call_text("now"))
    assert not admits(rules(tool("now")), call_text("now", x="1"))
    assert admits(
        rules(tool("now", {"type": "object", "additionalProperties": True})), call_text("now", x="1")
    )


def test_with_a_schema_it_is_a_call_or_the_json() -> None:
    text = rules(LOOK, schema=json.dumps(schema(["a"], a={"type": "boolean"})))
    assert admits(text, '{"a": true}')
    assert admits(text, call_text("look", path="x"))
    assert not admits(text, '{"a": 1}')
    assert not admits(text, "hello")


def test_what_has_to_come_comes_in_the_tokens_of_the_whole_call() -> None:
    made, answer = guide(rules(LOOK)), tokens_of(call_text("look", path="x"))
    for token in answer[: answer.index(tokens_of("look")[0])]:
        # "\n\n" may come before the call; behind its mark nothing is left to choose.
        assert token in allowed(made)
        made.push(token)
    assert token == tokens_of("<function=")[-1]


def test_behind_thoughts_it_begins_after_their_end_or_with_the_mark_of_a_call() -> None:
    (mark,) = tokens_of("<tool_call>")
    call, ends = tokens_of(call_text("look", path="x")), set(tiny_tokenizer().eos_token_ids)
    for beginning, opening in (("hm\n</think>", None), ("hm\n</think>\n\n", mark), ("hm ", mark)):
        made = GRAMMARS.guide(Grammar(after="</think>", rules=rules(LOOK), opening=opening))
        assert made is not None
        for token in (*tokens_of(beginning), *call):
            assert token in allowed(made)
            assert not ends & allowed(made)
            made.push(token)
        assert allowed(made) == ends


def test_tags_may_be_tokens_as_tinys_are_or_several_as_qwens_are(tmp_path: Path) -> None:
    for file in TINY.glob("*.json*"):
        shutil.copy(file, tmp_path)
    shutil.copy(TINY / "chat_template.jinja", tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    tags = ("</parameter>", "</function>", "<parameter=", "<function=")
    added = description["added_tokens"]
    description["added_tokens"] = [token for token in added if token["content"] not in tags]
    assert len(description["added_tokens"]) == len(added) - len(tags)
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    qwens = read_tokenizer(tmp_path)
    tokens = qwens.encode(call_text("look", path="x"), add_special_tokens=False)
    assert len(tokens) >= len(tokens_of(call_text("look", path="x"))) + 8
    made = Grammars(qwens, VOCABULARY).guide(Grammar(rules=rules(LOOK)))
    assert made is not None
    for token in tokens:
        assert token in allowed(made)
        made.push(token)
    assert allowed(made) & set(qwens.eos_token_ids)


@pytest.mark.parametrize("character", [*map(chr, range(0xA1)), "\u2028", "\ufeff", "\U0010ffff"])
def test_names_and_values_may_hold_any_character(character: str) -> None:
    value = f"a{character}b"
    look = tool("look", schema(["path", "point"], path={"enum": [value]}, point={"const": [value]}))
    # JSON as llguidance writes it: DEL is escaped in values, and stands in names as it is.
    name = json.dumps(value, ensure_ascii=False)
    string = name.replace("\x7f", "\\u007f")
    assert admits(rules(look), call_text("look", path=value, point=f"[{string}]"))
    call = f'{{"name": "look", "arguments": {{"path": {string}, "point": [{string}]}}}}'
    assert admits(rules(look, form="hermes"), f"<tool_call>\n{call}\n</tool_call>")
    if can_be_called(tool(value), "xml"):
        assert admits(rules(tool(value, schema([value], **{value: {}}))), call_text(value, **{value: "x"}))
    answer = schema([value], **{value: {"const": value}})
    assert admits(rules(look, schema=json.dumps(answer)), f"{{{name}: {string}}}")


def test_rules_are_checked_as_a_whole_before_anything_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backburner.api.call_grammar._TERMINALS", "\nTEXT: NOWHERE\n")
    with pytest.raises(GrammarError):
        rules(LOOK)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        [],
        {"properties": {"path": True}},
        {"properties": {"path": {"type": 5}}},
        {"properties": {"path": {"type": "str"}}},
        {"properties": {"path": {"$ref": "#/nowhere"}}},
        {"properties": {"path": {"type": "array", "items": {"type": "string", "pattern": "(?=a)"}}}},
        {"properties": {"path": {"anyOf": [{"$ref": "#/properties/path"}, {"type": "string"}]}}},
        {"properties": {"path": {"enum": ["</parameter>", "\ud83d"]}}},
        {"properties": {"path": {"type": "string", "minLength": 5, "maxLength": 2}}},
        {"properties": {"path": {"type": "string", "maxLength": 10**9}}},
        {"properties": {"path": {"type": "string", "minLength": -1, "maxLength": 2.5}}},
        {"properties": {"path": {"const": '"\\\n\u0001\u2028/%'}}},
        {"properties": {"a>b": {"type": "string"}, " ": {}}, "required": ["path", 5]},
        {"$ref": "#/$defs/A", "$defs": {"A": schema(path={"type": "string"})}},
    ],
)
@pytest.mark.parametrize("form", ["xml", "hermes"])
def test_schemas_that_make_no_sense_hold_to_nothing_and_are_no_error(parameters: Any, form: Any) -> None:
    made = guide(rules(tool("look", parameters), form=form))
    assert allowed(made)


def test_a_union_with_text_is_a_text_and_one_with_null_says_null() -> None:
    text = rules(tool("look", schema(["path"], path={"type": ["string", "null"]})))
    assert admits(text, call_text("look", path="null"))
    assert admits(text, call_text("look", path="any"))
    text = rules(tool("look", schema(["path"], path={"type": "integer", "nullable": True})))
    assert admits(text, call_text("look", path="null"))
    assert not admits(text, call_text("look", path="any"))


def test_names_that_no_call_can_have_are_told() -> None:
    assert can_be_called(tool("a.b-c é"), "xml")
    for name in ("a>b", "a\nb", " a", "x" * 300):
        assert not can_be_called(tool(name), "xml")
        assert can_be_called(tool(name), "hermes")
    assert not can_be_called(tool("\ud83d"), "hermes")


def test_schemas_beyond_all_bounds_are_refused() -> None:
    with pytest.raises(GrammarError, match="at most"):
        rules(tool("look", schema(path={"enum": ["x" * MAX_SCHEMA_CHARACTERS]})))
