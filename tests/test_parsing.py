"""An answer's text as thoughts, content and tool calls: the same parts however the text is cut."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers import json_tools, qwen3_coder

from backburner.api.body import strict_json
from backburner.api.parsing.identity import new_call_id
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.pieces import (
    ContentDelta,
    Message,
    Piece,
    ReasoningDelta,
    ToolCallArguments,
    join,
)
from backburner.api.parsing.thinking import thinking_of


def tool(name: str, properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PROPERTIES: dict[str, Any] = {
    "path": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "deep": {"type": "boolean"},
    "nothing": {"type": "null"},
    "filter": {"type": "object"},
    "names": {"type": "array", "items": {"type": "string"}},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "title": {"type": ["string", "null"]},
    "paths": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "level": {"enum": [1, 2, "many", None]},
    "point": {"$ref": "#/$defs/Point"},
    "loop": {"$ref": "#/properties/loop"},
    "any": {"description": "whatever"},
}
DEFS = {"Point": {"properties": {"x": {"type": "number"}}}}
TOOLS = [tool("look", PROPERTIES, **{"$defs": DEFS}), tool("ping", {})]


def parser(thinking: Any = "none", **options: Any) -> Parser:
    counter = iter(range(10**6))
    defaults: dict[str, Any] = {
        "tools": TOOLS,
        "parses_calls": True,
        "new_id": lambda: f"call_{next(counter)}",
    }
    return Parser(thinking, **{**defaults, **options})


def stream(pieces: Sequence[str], *, cut: bool = False, **options: Any) -> list[Piece]:
    parsing = parser(**options)
    return [*(p for piece in pieces for p in parsing.feed(piece)), *parsing.finish(cut)]


def parse(text: str, **options: Any) -> Message:
    """The answer whole; checked to be the same character by character and cut once at every place."""
    whole = join(stream([text], **options))
    assert join(stream(list(text), **options)) == whole
    for cut in range(1, len(text)):
        assert join(stream([text[:cut], text[cut:]], **options)) == whole, (text[:cut], text[cut:])
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
    return whole


def calls(text: str, **options: Any) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in parse(text, **options).tool_calls]


def function(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{parameters}</function>\n"


def block(*functions: str) -> str:
    return f"<tool_call>\n{''.join(functions)}</tool_call>"


def argument(key: str, text: str) -> Any:
    [(_, arguments)] = calls(block(function("look", **{key: text})))
    return arguments[key]


# Thinking


def test_thoughts_and_answer_are_parted_without_the_form_around_them() -> None:
    assert parse("hm\n\nso\n</think>\n\nYes.\n", thinking="open") == Message("hm\n\nso", "Yes.\n", ())


def test_case_8_thoughts_that_a_natural_end_leaves_open_are_the_content_too() -> None:
    assert parse("the answer is 4", thinking="open") == Message("the answer is 4", "the answer is 4", ())
    pieces = stream(["the answer ", "is 4"], thinking="open")
    assert pieces == [
        ReasoningDelta("the answer "),
        ReasoningDelta("is 4"),
        ContentDelta("the answer is 4"),
    ]


def test_thoughts_that_are_cut_are_no_content() -> None:
    assert parse("the answer is", thinking="open", cut=True) == Message("the answer is", "", ())


def test_blank_thoughts_are_no_content() -> None:
    assert parse("\n \n", thinking="open").content == ""


def test_a_later_end_of_thoughts_is_plain_text() -> None:
    assert parse("a</think>b</think>c", thinking="open") == Message("a", "b</think>c", ())
    assert parse("because</think>answer") == Message("", "because</think>answer", ())


def test_the_indentation_of_an_answer_survives_the_blank_lines_before_it() -> None:
    assert parse("x\n</think>\n \n    if x:\n", thinking="open").content == "    if x:\n"


def test_an_answer_that_opens_its_thoughts_itself_is_parted_as_well() -> None:
    assert parse("<think>\nwhy\n</think>\n\nso") == Message("why", "so", ())
    assert parse("<think>\nwhy\n</think>\n\nso", thinking="open") == Message("why", "so", ())
    assert parse("<thin air") == Message("", "<thin air", ())


def test_thoughts_that_are_not_split_out_stay_in_the_content_with_their_marks() -> None:
    text = "hm\n</think>\n\nYes."
    assert parse(text, thinking="open", splits_thinking=False) == Message("", text, ())
    assert parse("<think>" + text, splits_thinking=False) == Message("", "<think>" + text, ())


@pytest.mark.parametrize("splits", [True, False])
def test_a_call_within_thoughts_is_a_thought(splits: bool) -> None:
    inner, outer = block(function("ping")), block(function("look", path="a"))
    text = f"I could {inner}\n</think>\n\n{outer}"
    message = parse(text, thinking="open", splits_thinking=splits)
    assert [call.name for call in message.tool_calls] == ["look"]
    assert message.reasoning + message.content == f"I could {inner}" + ("" if splits else "\n</think>")


def test_a_call_that_unclosed_thoughts_end_with_is_made() -> None:
    inner = block(function("look", path="a"))
    for text in (f"Let me see.\n\n{inner}", f"Let me see.\n\n{inner}\n", f"<think>Let me see.\n{inner}"):
        message = parse(text, thinking="open")
        assert (message.reasoning, message.content) == ("Let me see.", "")
        assert [(call.name, call.arguments) for call in message.tool_calls] == [("look", '{"path": "a"}')]
    assert [name for name, _ in calls(f"{inner}\n{block(function('ping'))}", thinking="open")] == [
        "look",
        "ping",
    ]
    assert [name for name, _ in calls(f"hm\n{function('ping')}</tool_call>", thinking="open")] == ["ping"]
    assert parse(f"hm {inner} Done.", thinking="open").content == " Done."


def test_a_call_in_thoughts_that_are_cut_is_not_made() -> None:
    text = f"I could {block(function('ping'))}"
    assert parse(text, thinking="open", cut=True) == Message(text, "", ())


def test_a_call_that_breaks_in_unclosed_thoughts_is_content_like_all_of_them() -> None:
    for text in ("hm\n\n<tool_call>\n<function=look>\n<parameter=path>\n1", "the <tool_call> tag"):
        assert parse(text, thinking="open") == Message(text, text, ())


def test_thoughts_are_sent_up_to_their_first_call_and_the_rest_when_an_answer_follows() -> None:
    parsing, inner = parser("open"), block(function("ping"))
    assert join(parsing.feed("the <tool_call> tag, so ")).reasoning == "the <tool_call> tag, so "
    assert parsing.feed(inner + " or not") == []
    assert parsing.feed("\n</think>\n\nNo.") == [ReasoningDelta(inner + " or not"), ContentDelta("No.")]
    assert parsing.finish() == []
    assert parsing.calls_sent == 0


def test_whether_a_prompt_ends_inside_thoughts_is_read_from_its_end() -> None:
    assert thinking_of("<|im_start|>assistant\n<think>\n") == "open"
    assert thinking_of("<|im_start|>assistant\n<think>\n\n</think>\n\n") == "none"
    assert thinking_of("what is <think>?<|im_end|>\n<|im_start|>assistant\n") == "none"


# Content


def test_without_tools_a_call_is_text() -> None:
    text = f"\n{block(function('ping'))}\n"
    assert parse(text, parses_calls=False) == Message("", text, ())


def test_blank_lines_before_a_call_are_dropped_and_everything_else_is_kept() -> None:
    text = "  Let me see:  \n\n" + block(function("ping")) + "\n"
    assert parse(text).content == "  Let me see:  "
    assert parse("\n\n" + block(function("ping"))).content == ""
    assert parse("a\n\n\nb \n\n").content == "a\n\n\nb \n\n"
    assert parse(" \n  " + block(function("ping"))).content == ""
    assert parse(" " + block(function("ping")) + " " + block(function("ping")) + " ").content == ""
    assert parse(block(function("ping")) + "\n<tool").content == "\n<tool"
    assert parse(block(function("ping")) + "\n\nDone.\n").content == "\n\nDone.\n"


def test_content_is_sent_as_soon_as_it_can_be_no_mark() -> None:
    parsing = parser()
    assert parsing.feed("a <") == [ContentDelta("a ")]
    assert parsing.feed("b> c") == [ContentDelta("<b> c")]


# Calls


def test_the_xml_form_gives_one_call() -> None:
    message = parse(block(function("look", path="a.py", count="3")))
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_0", "look", '{"path": "a.py", "count": 3}')
    ]


def test_the_hermes_form_gives_one_call() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"path": "{\\"<\\\\", "n": [1, {"a": "é"}]}}\n</tool_call>'
    assert calls(text) == [("look", {"path": '{"<\\', "n": [1, {"a": "é"}]})]
    assert parse(text).content == ""
    assert calls('<tool_call>{"name":"ping"}</tool_call>') == [("ping", {})]
    assert calls('<tool_call>{"name":"ping","arguments":"{\\"a\\":1}"}</tool_call>') == [("ping", {"a": 1})]
    assert calls('<tool_call>{"name":"a","arguments":{"b":"two\nlines"}}</tool_call>') == [
        ("a", {"b": "two\nlines"})
    ]


def test_both_forms_without_blanks_are_read() -> None:
    assert calls("<tool_call><function=look><parameter=path>x</parameter></function></tool_call>") == [
        ("look", {"path": "x"})
    ]


def test_a_call_without_its_opening_mark_is_read_if_a_tool_has_its_name() -> None:
    text = "I'll look.\n\n" + function("look", path="a") + "</tool_call>"
    message = parse(text)
    assert message.content == "I'll look."
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("look", '{"path": "a"}')]
    assert parse(text, parses_calls=False).content == text
    assert parse(text, tools=[tool("other", {})]) == Message("", text, ())
    assert calls(function("ping") + function("look") + "</tool_call>\n" + block(function("ping"))) == [
        ("ping", {}),
        ("look", {}),
        ("ping", {}),
    ]
    assert parse(function("ping") + "\nDone.").content == "\n\nDone."


def test_no_parameters_are_an_empty_object() -> None:
    assert parse(block(function("ping"))).tool_calls[0].arguments == "{}"


def test_case_14_two_functions_in_one_block_have_two_indices_and_each_valid_json() -> None:
    text = block(function("look", path="a"), function("ping"))
    starts = [p for p in stream([text]) if not isinstance(p, ContentDelta | ToolCallArguments)]
    assert [(s.index, s.id, s.name) for s in starts] == [(0, "call_0", "look"), (1, "call_1", "ping")]  # type: ignore[union-attr]
    assert calls(text) == [("look", {"path": "a"}), ("ping", {})]


def test_several_blocks_of_both_forms_are_all_read() -> None:
    text = (
        "x\n"
        + block(function("ping"))
        + '\n<tool_call>{"name":"look"}</tool_call>\n'
        + block(function("ping"))
    )
    assert [name for name, _ in calls(text)] == ["ping", "look", "ping"]
    assert parse(text).content == "x"


@pytest.mark.parametrize("form", ["xml", "hermes"])
def test_case_15_arguments_concatenate_to_the_same_json_for_a_cut_at_every_boundary(form: str) -> None:
    text = (
        block(function("look", path='say "hi"\\', filter='{"a": [1.50, {}]}', names="[]"))
        if form == "xml"
        else '<tool_call>\n{"name": "look", "arguments": {"path": "a\\"b", "x": {"y": []}}}\n</tool_call>'
    )
    whole = parse(text).tool_calls[0].arguments  # `parse` cuts at every boundary
    assert whole.startswith("{")
    json.loads(whole)


@pytest.mark.parametrize(
    "value",
    ["    if x:\n", "\n\nx", "x\n\n", " ", "", "\t", '{"a": 1}', "null", "5", "true", "a</b>", "é🙂\u2028"],
)
def test_case_17_a_string_loses_one_newline_per_side_and_nothing_else(value: str) -> None:
    assert argument("path", value) == value


def test_a_value_may_hold_calls_and_lone_closing_tags() -> None:
    quoted = (
        "Write:\n"
        + block(function("look", path="a"), function("ping"))
        + "\nand </parameter> ends </function>."
    )
    assert argument("path", quoted) == quoted


def test_case_17_a_call_that_stands_in_a_value_is_not_made() -> None:
    quoted = block(function("ping"))
    assert [name for name, _ in calls(block(function("look", path=quoted)))] == ["look"]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "42", 42),
        ("count", " 42 ", 42),
        ("count", "5.0", 5),
        ("count", "5.5", "5.5"),
        ("count", "007", "007"),
        ("count", "many", "many"),
        ("count", "9" * 5000, "9" * 5000),
        ("ratio", "-1.5e3", -1500.0),
        ("ratio", "3", 3),
        ("ratio", "NaN", "NaN"),
        ("ratio", "1e999", "1e999"),
        ("deep", "true", True),
        ("deep", "False", False),
        ("deep", "yes", "yes"),
        ("nothing", "null", None),
        ("filter", '{"a": [1, null]}', {"a": [1, None]}),
        ("filter", '{\n  "a": "two\nlines"\n}', {"a": "two\nlines"}),
        ("filter", "{'a': 1}", "{'a': 1}"),
        ("filter", '{"a": NaN}', '{"a": NaN}'),
        ("filter", "[1]", "[1]"),
        ("names", '["a", "b"]', ["a", "b"]),
        ("names", "[" * 5000, "[" * 5000),
        ("names", "[" * 500 + "]" * 500, "[" * 500 + "]" * 500),
        ("limit", "null", None),
        ("limit", "10", 10),
        ("limit", "ten", "ten"),
        ("title", "null", None),
        ("title", "5", "5"),
        ("paths", '["a"]', ["a"]),
        ("paths", "[a", "[a"),
        ("level", "2", 2),
        ("level", "many", "many"),
        ("level", "null", None),
        ("point", '{"x": 1}', {"x": 1}),
        ("loop", "1", "1"),
        ("any", '{"x": 1}', {"x": 1}),
        ("any", "1", "1"),
        ("unknown", "1", "1"),
        ("unknown", '{"x": 1}', '{"x": 1}'),
    ],
)
def test_a_value_has_the_type_of_its_schema_or_stays_a_string(key: str, text: str, value: Any) -> None:
    found = json.loads(join(stream([block(function("look", **{key: text}))])).tool_calls[0].arguments)[key]
    assert found == value
    assert type(found) is type(value)


def test_numbers_keep_their_digits() -> None:
    text = block(function("look", ratio="1.10", filter='{"id": 12345678901234567890, "p": 1.0}'))
    assert parse(text).tool_calls[0].arguments == (
        '{"ratio": 1.10, "filter": {"id": 12345678901234567890, "p": 1.0}}'
    )


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "function"}],
        [{"function": {"name": "look", "parameters": None}}],
        [{"function": {"name": "look", "parameters": {"properties": [1]}}}],
        [tool("look", {"path": True})],
        [tool("look", {"path": {"type": 5, "enum": 5, "anyOf": 5, "$ref": "#/nowhere/at/all"}})],
        [tool("look", {"path": {"anyOf": [{"$ref": "#/properties/path"}] * 1000}})],
    ],
)
def test_odd_schemas_are_no_error(tools: Any) -> None:
    assert calls(block(function("look", path="1")), tools=tools) == [("look", {"path": "1"})]


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    text = "a\n" + block(function("look", path="1"), function("ping")) + "\n" + block(function("ping"))
    assert calls(text, parallel=False) == [("look", {"path": "1"})]
    assert parse(text, parallel=False).content == "a"


def test_a_call_is_sent_when_its_function_is_complete_and_not_before() -> None:
    parsing = parser()
    text = block(function("look", path="x" * 50))
    complete = text.index("</function>") + len("</function>")
    assert parsing.feed(text[: complete - 1]) == []
    assert len(parsing.feed(text[complete - 1 : complete])) == 2
    assert parsing.calls_sent == 1


def test_ids_are_unique_and_of_24_url_safe_characters() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"call_[A-Za-z0-9_-]{24}", i) for i in ids)


BROKEN = [
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>\n\n</tool_call>\n",
    "<tool_call> is the tag of calls",
    "<tool_call>\n<function=look",
    f"<tool_call>\n<function={'x' * 300}>\n</function>\n</tool_call>",
    f"<tool_call>\n<function=look>\n<parameter={'x' * 300}",
    "<tool_call>\n<function=>\n</function>\n</tool_call>",
    "<tool_call>\n<function=look\n>\n</function>\n</tool_call>",
    "<tool_call>\n<function=look>\nfree text\n</function>\n</tool_call>",
    "<tool_call>\n<function=look>\n<parameter=path>\nhalf a val",
    "<tool_call>\n<function=look>\n<parameter=path>\n1\n</parameter>\n</tool_call>",
    "<tool_call>\n<function=look>\n<parameter=path>\n1\n</function>\n</tool_call>",
    "<tool_call>\n<function=look>\n<parameter=path>\n1\n<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n{"name": "look", "arguments": {"a": 1}\n</tool_call>',
    '<tool_call>\n{"name": "look", "arguments": {"a": "1}}\n</tool_call>',
    '<tool_call>\n{"name": "look", "arguments": [1]}\n</tool_call>',
    '<tool_call>\n{"name": "look", "arguments": {"a": NaN}}\n</tool_call>',
    '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "\\ud83d", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"arguments": {}}\n</tool_call>',
    "<tool_call>\n{]\n</tool_call>",
    "</tool_call>",
    "<function=other>\n</function>\n</tool_call>",
    "<function=loo",
    "<function=look",
    "`<function=look>` begins a call",
    "<function=look>\nfree text\n</function>\n</tool_call>",
    "<function=look>\n<parameter=path>\nhalf a val",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_call_is_content_to_the_last_character(text: str) -> None:
    assert parse(f"see:\n\n{text}") == Message("", f"see:\n\n{text}", ())
    assert parse(text) == Message("", text, ())


@pytest.mark.parametrize("text", BROKEN)
def test_behind_a_broken_call_the_next_one_is_read(text: str) -> None:
    message = parse(text + "\n" + block(function("ping")))
    assert [(c.name, c.arguments) for c in message.tool_calls] == [("ping", "{}")]
    assert message.content.rstrip("\n") == text.rstrip("\n")


def test_a_call_stands_when_what_follows_it_in_its_block_breaks() -> None:
    text = block(function("ping"), "<function=look>\n<parameter=path>\n1")
    message = parse(text)
    assert [c.name for c in message.tool_calls] == ["ping"]
    assert message.content == "\n<function=look>\n<parameter=path>\n1</tool_call>"


def test_a_call_whose_block_is_not_closed_stands() -> None:
    assert calls("<tool_call>\n" + function("ping")) == [("ping", {})]
    assert parse("<tool_call>\n" + function("ping")).content == ""
    assert [n for n, _ in calls("<tool_call>\n" + function("ping") + block(function("look")))] == [
        "ping",
        "look",
    ]


@pytest.mark.parametrize(
    ("escaped", "said"),
    [
        ("\\ud83d", "\ufffd"),
        ("\\uDe42", "\ufffd"),
        ("a\\ud83db\\ud83d", "a\ufffdb\ufffd"),
        ("\\ude42\\ud83d", "\ufffd\ufffd"),
        ("\\ud83d\\ud83d\\ude42", "\ufffd🙂"),
        ("\\ud83d\\ude42", "🙂"),
        ("\\\\ud83d", "\\ud83d"),
    ],
)
def test_half_of_a_surrogate_pair_in_arguments_is_a_replacement_character(escaped: str, said: str) -> None:
    hermes = f'{{"name": "look", "arguments": {{"path": "{escaped}"}}}}'
    doubled = json.dumps(f'{{"path": "{escaped}"}}')
    xml = function("look", filter=f'{{"{escaped}": "{escaped}", "n": 1.50}}')
    for text in (hermes, f'{{"name": "look", "arguments": {doubled}}}', xml):
        (call,) = parse(f"<tool_call>\n{text}\n</tool_call>").tool_calls
        value = strict_json(call.arguments)  # as it is read when it comes back
        assert value == ({"path": said} if text is not xml else {"filter": {said: said, "n": 1.5}})


@pytest.mark.parametrize(
    "loop",
    [
        "<tool_call>\n<function=look>\n<parameter=path>\n",
        '<tool_call>{"a":"',
        "<tool_call>",
        "<tool_call>{",
        "<function=look>\n<parameter=path>\n",
        "<function=look>",
    ],
)
def test_a_model_that_loops_in_opened_calls_costs_a_bounded_effort(loop: str) -> None:
    text = loop * 3000
    assert join(stream([text])) == Message("", text, ())


# Everything at once

FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=look>", "<function=ping>", "<function=",
    "</function>", "<parameter=path>", "<parameter=count>", "<parameter=", "</parameter>", "\n", "\n\n", " ", "    x",
    "5", "null", "é", "<", ">", "{", "}", '"', "\\", '{"name": "look", "arguments": {"path": "', '"}}',
    block(function("look", path="  a\n", count="3")), block(function("ping"), function("look")),
    '<tool_call>{"name": "ping"}</tool_call>', function("ping"), "text",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=25).map("".join)


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def letters(text: str) -> Iterator[str]:
    return (c for c in text if c not in " \t\r\n")


@settings(max_examples=400, deadline=None)
@given(
    cut(),
    st.sampled_from(["open", "none"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_parts_do_not_depend_on_where_the_text_is_cut(
    text_and_pieces: tuple[str, list[str]],
    thinking: str,
    splits: bool,
    reads: bool,
    parallel: bool,
    ends_cut: bool,
) -> None:
    text, pieces = text_and_pieces
    options: dict[str, Any] = {
        "thinking": thinking,
        "splits_thinking": splits,
        "parses_calls": reads,
        "parallel": parallel,
        "cut": ends_cut,
    }
    whole = join(stream([text], **options))
    assert join(stream(pieces, **options)) == whole
    assert join(stream(list(text), **options)) == whole
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
    if not splits and not reads:
        assert whole == Message("", text, ())
    if not splits and not whole.tool_calls:
        assert whole.content == text
    if not whole.tool_calls:
        assert whole == join(stream([text], **{**options, "parses_calls": False}))
    if ends_cut and "</think>" not in text and thinking == "open":
        assert not whole.tool_calls


@settings(max_examples=200, deadline=None)
@given(texts)
def test_no_text_is_lost_but_the_form(text: str) -> None:
    message = join(stream([text]))
    if not message.tool_calls and not message.reasoning and "<think>" not in text:
        assert message.content == text
    left = iter(letters(text))
    assert all(c in left for c in letters(message.content))  # a subsequence, nothing is made up


values = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda v: "<" not in v)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["path", "unknown", "key.with-signs"]), values))
def test_strings_come_out_byte_exact_as_mlx_lm_reads_them(arguments: dict[str, str]) -> None:
    inner = function("look", **arguments).rstrip("\n")
    message = join(stream([f"<tool_call>\n{inner}\n</tool_call>"]))
    assert json.loads(message.tool_calls[0].arguments) == arguments
    # mlx-lm takes "null" for None, whatever the schema says; see parsing/functions.py.
    if not any(v.lower() == "null" for v in arguments.values()):
        assert qwen3_coder.parse_tool_call(inner, TOOLS)["arguments"] == arguments


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(values, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(values, json_values, max_size=3), st.integers(0, 200))
def test_hermes_arguments_come_out_as_mlx_lm_reads_them(arguments: dict[str, Any], at: int) -> None:
    inner = json.dumps({"name": "look", "arguments": arguments})
    text = f"<tool_call>\n{inner}\n</tool_call>"
    message = join(stream([text[:at], text[at:]]))
    assert (
        json.loads(message.tool_calls[0].arguments)
        == json_tools.parse_tool_call(inner)["arguments"]
        == arguments
    )
