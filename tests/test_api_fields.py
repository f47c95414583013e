"""Fields of a request: what each does to the prompt, to what the engine is asked, and to the answer."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backburner.api.chat import ChatChoice
from backburner.api.completions import CompletionChoice
from backburner.engine.request import GenerationRequest, Grammar, SamplingParams
from tests.api_support import (
    HI,
    AsgiClient,
    asgi,
    asgi_tiny,
    assembled,
    both_ways,
    error_of,
    frames,
    streamed_text,
    without_ids,
)
from tests.scripted_engine import END, Script, bytes_of, says, tiny_tokenizer, tokens_of
from tests.test_api_cases import FORECAST, THINKS, TOOLS, arguments_of, call_text, prompt_of

NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "forecast"}}
CLOSED = "<think>\n\n</think>\n\n"


def by_seed(request: GenerationRequest) -> Script:
    """Says its own seed, so that choices can be told apart."""
    return says(f"seed {request.sampling.seed}")


# n and seed


def test_choices_of_a_seed_differ_and_are_the_same_ones_every_time() -> None:
    with asgi(by_seed) as client:
        asked = [client.chat(n=3, seed=7).json() for _ in range(2)]
        one = client.chat(seed=7).json()["choices"][0]["message"]["content"]
    texts = [[c["message"]["content"] for c in body["choices"]] for body in asked]
    assert [c["index"] for c in asked[0]["choices"]] == [0, 1, 2]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    assert texts[0][0] == one, "more choices do not change the first"


def test_choices_without_a_seed_are_left_to_chance() -> None:
    with asgi(by_seed) as client:
        client.chat(n=3)
    assert [r.sampling.seed for r in client.engine.requests] == [None] * 3
    assert len({r.request_id for r in client.engine.requests}) == 3


def test_streamed_choices_are_the_whole_answers_choices() -> None:
    with asgi(by_seed) as client:
        whole = client.chat(n=3, seed=2**64 - 1).json()["choices"]
        streamed = client.chat(n=3, seed=2**64 - 1, stream=True)
    assert [assembled(streamed, i) for i in range(3)] == whole
    assert streamed.text.count("[DONE]") == 1


def test_calls_of_each_choice_start_at_index_0() -> None:
    with asgi(says(call_text(city="Oslo"))) as client:
        response = client.chat(n=2, stream=True, tools=TOOLS)
    choices = [assembled(response, i) for i in range(2)]
    assert [arguments_of(c) for c in choices] == [[{"city": "Oslo"}]] * 2
    assert len({c["message"]["tool_calls"][0]["id"] for c in choices}) == 2


# logprobs


def test_logprobs_are_null_unless_asked_for_and_alternatives_need_them() -> None:
    with asgi(says("hello")) as client:
        assert client.chat().json()["choices"][0]["logprobs"] is None
        assert client.chat(logprobs=False).json()["choices"][0]["logprobs"] is None
        assert client.chat(top_logprobs=0).status_code == 200
        error = error_of(client.chat(top_logprobs=2), 400)
    assert (error["param"], error["code"]) == ("top_logprobs", "invalid_value")


def joined(choice: dict[str, Any]) -> str:
    entries = choice["logprobs"]["content"] if choice["logprobs"] else []
    return b"".join(bytes(e["bytes"]) for e in entries).decode()


@pytest.mark.parametrize("text", ["abcdefgh", "one 🙂STOP two", "one 🙂STO", "日本STOP"])
def test_logprobs_join_to_the_content_that_a_stop_string_cuts(text: str) -> None:
    with asgi(says(text)) as client:
        choice = both_ways(client, logprobs=True, stop=["STOP", "efg"])
    assert joined(choice) == choice["message"]["content"]


@pytest.mark.parametrize(
    ("text", "thinks"),
    [
        ("hm\n</think>\n\nyes", True),
        ("hm</think>yes", True),
        ("hm\n</think>\n\n  indented 🙂", True),
        ("hm\n</think>\n \n\n  x", True),
        ("</think>\n\n", True),
        ("<think>\nhm\n</think>\n\nyes", False),
        ("\n<think>\nhm\n</think>\n\nyes", False),
        ("  \n yes", False),
        ("\n\n", False),
        ("a <think> b </think> c", False),
        ("the answer is 4", True),
        ("\n\n  the answer is 4\n", True),
        ("<think>\nthe answer is 4", False),
        ("\n", True),
        ("<think>Let me see.", True),
        ("<think>\nLet me see.\n</think>\n\nyes", True),
        ("<think>", True),
        (" <thin", True),
    ],
)
def test_logprobs_are_of_the_content_and_not_of_the_thoughts(text: str, thinks: bool) -> None:
    with asgi(says(text)) as client:
        choice = both_ways(client, logprobs=True, **(THINKS if thinks else {}))
    assert joined(choice) == choice["message"]["content"]


@pytest.mark.parametrize("thinks", [False, True])
def test_logprobs_are_of_the_text_around_calls_and_not_of_the_calls(thinks: bool) -> None:
    call = call_text(city="Oslo")
    said = f"I look: 🙂\n\n{call}\n{call}\n\nDone, a <b."
    with asgi(says("hm\n</think>\n\n" + said if thinks else said)) as client:
        fields: dict[str, Any] = {"tools": TOOLS, "logprobs": True, **(THINKS if thinks else {})}
        choice = both_ways(client, **fields)
        assert joined(choice) == choice["message"]["content"] == "I look: 🙂\n\nDone, a <b."
    with asgi(says(call)) as client:
        choice = both_ways(client, logprobs=True, tools=TOOLS)
    assert choice["message"]["content"] is None
    assert choice["logprobs"] == {"content": []}


def test_an_impossible_token_has_a_logprob_that_is_json() -> None:
    from backburner.engine.sampling import Score

    script = Script(tokens_of("ab"), score=lambda token, count: Score(-0.5, ((5, float("-inf")),) * count))
    with asgi(script) as client:
        response = client.chat(logprobs=True, top_logprobs=1)
        texts = client.complete(logprobs=1).json()
    assert "Infinity" not in response.text
    assert response.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] == -9999.0
    assert texts["choices"][0]["logprobs"]["top_logprobs"][0] == {bytes_of(5).decode(): -9999.0}


# response_format


def grammar_of(client: AsgiClient, **fields: Any) -> Grammar | None:
    assert client.chat(**fields).status_code == 200
    request: GenerationRequest = client.engine.requests[-1]
    return request.grammar


SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"enum": ["é", None]}},
    "required": ["b"],
}


def test_response_formats_become_grammars_that_start_after_the_thoughts() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    with asgi(says("{}")) as client:
        assert grammar_of(client) is None
        assert grammar_of(client, response_format={"type": "text"}) is None
        assert grammar_of(client, response_format={"type": "json_object"}) == Grammar(None, None)
        assert grammar_of(client, response_format={"type": "json_object"}, **THINKS) == Grammar(
            None, "</think>"
        )
        as_text = json.dumps(SCHEMA, ensure_ascii=False)  # its keys in the client's order: answers keep it
        assert grammar_of(client, response_format=wanted) == Grammar(as_text, None)
        assert grammar_of(client, response_format=wanted, **THINKS) == Grammar(as_text, "</think>")
        assert grammar_of(client, response_format=wanted, reasoning_effort="high").after == "</think>"


def test_a_schema_beside_json_object_holds_as_llama_cpp_takes_it() -> None:
    wanted = {"type": "json_object", "schema": SCHEMA}
    with asgi(says("{}")) as client:
        assert grammar_of(client, response_format=wanted) == Grammar(
            json.dumps(SCHEMA, ensure_ascii=False), None
        )
        assert grammar_of(client, response_format=wanted | {"schema": None}) == Grammar(None, None)
        error = error_of(client.chat(response_format=wanted | {"schema": {"type": "nonsense"}}), 400)
    assert error["param"] == "response_format.schema"


def test_with_tools_the_answer_is_a_call_or_the_json_and_with_none_of_them_only_json() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for fields in ({"response_format": wanted}, {"response_format": {"type": "json_object"}}):
        with asgi(says('{"b": 1}')) as client:
            held = grammar_of(client, tools=TOOLS, **fields, **THINKS)
            assert held is not None
            assert held.after == "</think>"
            assert "<function=forecast>" in held.rules
            assert "%json" in held.rules.partition("call:")[0]
            alone = grammar_of(client, tools=TOOLS, tool_choice="none", **fields)
            assert alone is not None
            assert alone.rules is None
            forced = grammar_of(client, tools=TOOLS, tool_choice="required", **fields)
            assert forced is not None
            assert "%json" not in forced.rules.partition("call:")[0], "a call was asked for, and no answer"
            assert both_ways(client, tools=TOOLS, **fields)["message"]["content"] == '{"b": 1}'


# tools


def test_tool_choice_decides_what_is_shown_and_what_the_answer_is_held_to() -> None:
    with asgi(says("A")) as client:
        for choice in (None, "auto", "none", "required", NAMED):
            grammar = grammar_of(client, tools=[FORECAST, NOW], tool_choice=choice)
            assert ("forecast" in prompt_of(client)) == (choice != "none")
            assert prompt_of(client).endswith(CLOSED)
            rules = grammar.rules if grammar else ""
            assert ("<function=forecast>" in rules) == (choice in ("required", NAMED))
            assert ("<function=now>" in rules) == (choice == "required")


@pytest.mark.parametrize(
    ("choice", "parallel", "several"),
    [("required", None, True), ("required", True, True), ("required", False, False), (NAMED, None, False)],
)
def test_as_many_calls_are_forced_as_are_asked_for(choice: Any, parallel: bool | None, several: bool) -> None:
    with asgi(says("A")) as client:
        grammar = grammar_of(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
    assert grammar is not None
    assert ("call*" in grammar.rules.replace('("\\n" call)*', "call*")) == several


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_in_the_hermes_form(monkeypatch: pytest.MonkeyPatch, choice: Any) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson if tools }}|"
    monkeypatch.setattr(tiny_tokenizer()._tokenizer, "chat_template", template)
    call = '<tool_call>\n{"name": "forecast", "arguments": {"city": "Oslo"}}\n</tool_call>'
    with asgi(says(call)) as client:
        answer = both_ways(client, tools=[FORECAST, NOW], tool_choice=choice)
        rules = client.engine.requests[-1].grammar.rules
    assert "<function=" not in rules
    assert rules.count('"arguments"') == (4 if choice == "required" else 2)  # named, and required
    assert arguments_of(answer) == [{"city": "Oslo"}]
    assert answer["message"]["content"] is None


def test_a_forced_call_comes_behind_the_thoughts() -> None:
    with asgi(says("Where? Oslo.\n</think>\n\n" + call_text(city="Oslo"))) as client:
        answer = both_ways(client, tools=[FORECAST, NOW], tool_choice="required", **THINKS)
        assert prompt_of(client).endswith("<think>\n")
        assert client.engine.requests[-1].grammar.after == "</think>"
    assert arguments_of(answer) == [{"city": "Oslo"}]
    assert answer["message"]["reasoning_content"] == "Where? Oslo."
    assert answer["message"]["content"] is None
    assert answer["finish_reason"] == "tool_calls"


def test_a_forced_call_that_is_cut_is_text_and_no_half_call() -> None:
    cut = "<tool_call>\n<function=forecast>\n<parameter=city>\nOs"
    with asgi(says(cut)) as client:
        answer = both_ways(client, tools=TOOLS, tool_choice="required")
    assert answer["message"]["content"] == cut
    assert answer["finish_reason"] == "stop"


def test_a_tool_that_no_call_can_name_cannot_be_asked_for() -> None:
    odd = {"type": "function", "function": {"name": "a>b"}}
    with asgi(says("A")) as client:
        assert client.chat(tools=[odd]).status_code == 200
        assert error_of(client.chat(tools=[odd], tool_choice="required"), 400)["param"] == "tools"
        assert client.chat(tools=[odd, NOW], tool_choice="required").status_code == 200


def test_a_name_that_is_no_tool_is_a_400_that_lists_the_tools() -> None:
    choice = {"type": "function", "function": {"name": "other"}}
    with asgi(says("A")) as client:
        error = error_of(client.chat(tools=[FORECAST, NOW], tool_choice=choice), 400)
        assert not client.engine.requests
    assert error["param"] == "tool_choice"
    assert "forecast, now" in error["message"]


def test_calls_with_tool_choice_none_are_text() -> None:
    text = call_text(city="Oslo")
    with asgi(says(text)) as client:
        answer = both_ways(client, tools=TOOLS, tool_choice="none")
    assert answer["message"]["content"] == text
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize(("parallel", "calls"), [(None, 2), (True, 2), (False, 1)])
def test_parallel_tool_calls_false_keeps_the_first_call(parallel: bool | None, calls: int) -> None:
    text = call_text(city="Oslo") + "\n" + call_text("now")
    with asgi(says(text)) as client:
        answer = both_ways(client, tools=[FORECAST, NOW], parallel_tool_calls=parallel)
    assert arguments_of(answer) == [{"city": "Oslo"}, {}][:calls]
    assert answer["finish_reason"] == "tool_calls"


def test_arguments_have_the_types_of_the_tools_schema() -> None:
    with asgi(says(call_text(city="5", days="5"))) as client:
        assert arguments_of(both_ways(client, tools=TOOLS)) == [{"city": "5", "days": 5}]


# thinking


@pytest.mark.parametrize(
    ("effort", "thinks"),
    [(None, False), ("none", False), ("minimal", False), ("low", True), ("medium", True), ("high", True)],
)
def test_reasoning_effort_turns_thinking_on_and_off(effort: str | None, thinks: bool) -> None:
    with asgi(says("A")) as client:
        client.chat(reasoning_effort=effort)
        assert prompt_of(client).endswith("<think>\n" if thinks else CLOSED)
        client.chat(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
        assert prompt_of(client).endswith(CLOSED), "the template's own switch wins"
    with asgi(says("A"), chat_template_kwargs={"enable_thinking": True}) as client:
        client.chat(reasoning_effort=effort)
        assert prompt_of(client).endswith("<think>\n" if thinks or effort is None else CLOSED)


# continuing


def test_the_last_message_can_be_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": "The capital is"}]
    with asgi(says(" Oslo.")) as client:
        answer = both_ways(client, messages=messages, continue_final_message=True)
        assert prompt_of(client).endswith("The capital is")
        client.chat(messages=messages)
        assert not prompt_of(client).endswith("The capital is")
    assert answer["message"]["content"] == " Oslo."


def test_what_cannot_be_continued_is_a_400() -> None:
    last = {"role": "assistant", "content": "x"}
    with asgi(says("A")) as client:
        assert error_of(client.chat(continue_final_message=True), 400)["param"] == "continue_final_message"
        both: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": True}
        assert error_of(client.chat(messages=[*HI, last], **both), 400)["param"] == "add_generation_prompt"
        assert not client.engine.requests
        assert client.chat(add_generation_prompt=False).status_code == 200
        assert prompt_of(client).endswith("<|im_end|>\n")


# sampling


def test_penalties_and_biases_reach_the_engine_and_both_names_of_one_mean_the_same() -> None:
    with asgi(says("A"), sampling=SamplingParams(repetition_penalty=1.5)) as client:
        client.chat(
            presence_penalty=2, frequency_penalty=-2, repetition_penalty=1.1, logit_bias={"5": 100, "7": -1.5}
        )
        client.chat(repeat_penalty=0.9)
        client.chat(repetition_penalty=1.2, repeat_penalty=0.9)
        client.complete()
        given, other_name, both, default = (r.sampling for r in client.engine.requests)
    assert (given.presence_penalty, given.frequency_penalty, given.repetition_penalty) == (2, -2, 1.1)
    assert given.logit_bias == ((5, 100.0), (7, -1.5))
    assert [s.repetition_penalty for s in (other_name, both, default)] == [0.9, 1.2, 1.5]


def test_a_bias_of_a_token_outside_the_vocabulary_is_a_400() -> None:
    size = len(tiny_tokenizer())
    with asgi(says("A")) as client:
        assert client.chat(logit_bias={str(size - 1): 1}).status_code == 200
        for ask in (client.chat, client.complete):
            error = error_of(ask(logit_bias={str(size): 1}), 400)
            assert error["param"] == "logit_bias"
            assert str(size) in error["message"]


# text completions


@pytest.mark.parametrize("stream", [False, True])
def test_only_an_answer_that_is_not_streamed_is_kept(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[Any] = []
    for kind in (ChatChoice, CompletionChoice):
        monkeypatch.setattr(kind, "opening", lambda self: choices.append(self) or ())
    with asgi(says("hello")) as client:
        client.chat(stream=stream, logprobs=True)
        client.complete(stream=stream, logprobs=0, echo=True)
    chat, completion = choices
    kept = (chat._pieces, chat._all_scores, completion._texts, completion._blocks)
    assert [bool(values) for values in kept] == [not stream] * len(kept)


def test_echo_puts_the_prompt_in_front() -> None:
    with asgi(says(" world")) as client:
        fields: dict[str, Any] = {"prompt": ["hello 🙂", "bye"], "echo": True, "n": 2}
        choices = client.complete(**fields).json()["choices"]
        chunks = frames(client.complete(stream=True, **fields))
    wanted = ["hello 🙂 world"] * 2 + ["bye world"] * 2
    assert [c["text"] for c in choices] == wanted
    for index, text in enumerate(wanted):
        assert "".join(c["text"] for f in chunks for c in f["choices"] if c["index"] == index) == text


def merged(chunks: list[dict[str, Any]]) -> dict[str, list[Any] | None]:
    """The lists of a streamed completion's logprobs, put together as a client does."""
    lists: dict[str, list[Any] | None] = {}
    for choice in (c for chunk in chunks for c in chunk["choices"]):
        for name, values in (choice["logprobs"] or {}).items():
            lists[name] = values if lists.get(name) is None else (lists[name] or []) + (values or [])
    return lists


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("step", [1, 3, 256])
def test_completion_logprobs_are_parallel_lists_whose_offsets_count_characters(
    top: int, echo: bool, step: int
) -> None:
    prompt, text = "two 🙂 日", " wörld 🙂!"
    with asgi(Script(tokens_of(text), prompt_step=step)) as client:
        fields: dict[str, Any] = {"prompt": prompt, "echo": echo, "logprobs": top}
        choice = client.complete(**fields).json()["choices"][0]
        streamed = client.complete(stream=True, **fields)
        assert [r.prompt_logprobs for r in client.engine.requests] == [echo, echo]
    tokens = (*tokens_of(prompt), *tokens_of(text)) if echo else tokens_of(text)
    whole = prompt + text if echo else text
    assert choice["text"] == whole == streamed_text(streamed)
    lists = choice["logprobs"]
    assert merged(frames(streamed)) == lists
    data = [*map(bytes_of, tokens), b""]  # the end token, last, has no text
    assert lists["tokens"] == [d.decode(errors="replace") for d in data]
    before = [b"".join(data[:i]).decode(errors="ignore") for i in range(len(data))]
    assert lists["text_offset"] == [len(b) for b in before]
    assert len(lists["token_logprobs"]) == len(data)
    assert [i for i, logprob in enumerate(lists["token_logprobs"]) if logprob is None] == (
        [0] if echo else []
    )
    if top == 0:
        assert lists["top_logprobs"] is None
    else:
        assert [t is None for t in lists["top_logprobs"]] == [echo and i == 0 for i in range(len(data))]


def test_a_completions_choices_are_ordered_by_prompt_and_then_by_n() -> None:
    def script(request: GenerationRequest) -> Script:
        return says(f"{tiny_tokenizer().decode(list(request.prompt))}/{request.sampling.seed}")

    with asgi(script) as client:
        body = client.complete(prompt=["a", "b"], n=2, seed=5).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "a/5"),
        (1, "a/6"),
        (2, "b/5"),
        (3, "b/6"),
    ]


# whole and streamed

BLOCKS = [
    "Let me see.",
    "🙂 日本",
    " ",
    "\n",
    "\n\n",
    "<think>",
    "</think>",
    "<think>\nhm\n</think>\n\n",
    call_text(city="Oslo", days="3"),
    call_text("now"),
    '<tool_call>\n{"name": "now", "arguments": {"a": [1, "</tool_call>"]}}\n</tool_call>',
    "<tool_call>",
    "</tool_call>",
    "<function=now>\n",
    "</function>",
    "<parameter=city>\nx",
    '{"name": ',
    "< tool",
    "<",
]


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[str, list[int]]:
    text = "".join(draw(st.lists(st.sampled_from(BLOCKS), max_size=6)))
    return text, sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))


def tokens_cut(text: str, cuts: list[int]) -> tuple[int, ...]:
    edges = [0, *(c for c in cuts if c < len(text)), len(text)]
    return tuple(t for a, b in itertools.pairwise(edges) for t in tokens_of(text[a:b]))


class Stage:
    """A client of an engine whose script can be changed."""

    def __init__(self) -> None:
        self.script = Script()

    def __repr__(self) -> str:
        return "stage"


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[AsgiClient, Stage]]:
    stage = Stage()
    with asgi(lambda _: stage.script) as client:
        yield client, stage


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut_answers(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([[], ["see"], ["🙂 日", "</function>\nx"]]),
    st.booleans(),
)
@example(("hm\n</think>\n\n" + call_text("now"), []), True, True, [], True)
@example(("<think>Let me see.", []), True, False, [], True)
def test_whole_and_streamed_say_the_same_wherever_tokens_cut_the_text(
    stage: tuple[AsgiClient, Stage],
    answer: tuple[str, list[int]],
    thinks: bool,
    tools: bool,
    stop: list[str],
    logprobs: bool,
) -> None:
    client, played = stage
    text, cuts = answer
    fields: dict[str, Any] = {"stop": stop, "logprobs": logprobs, **(THINKS if thinks else {})}
    if tools:
        fields["tools"] = [FORECAST, NOW]
    choices = []
    for tokens in (tokens_cut(text, cuts), tokens_of(text)):
        played.script = Script(tokens, token_delay_s=0.0005)
        choices.append(without_ids(both_ways(client, **fields)))
    for choice in choices:
        message = choice["message"]
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        if logprobs:
            assert joined(choice) == (message["content"] or "")
    first, second = ({k: v for k, v in choice.items() if k != "logprobs"} for choice in choices)
    assert first == second


# what clients make up

SCHEMA_WORDS = [
    "type",
    "properties",
    "city",
    "days",
    "$ref",
    "$defs",
    "x",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
    "required",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxItems",
    "multipleOf",
    "additionalProperties",
    "prefixItems",
    "not",
    "if",
    "then",
    "dependentSchemas",
    "patternProperties",
]

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["string", "integer", "object", "array", "#", "#/properties/city", "#/$defs/x", "(", "^a+$", ""]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(SCHEMA_WORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk)
def test_any_schema_is_a_grammar_or_a_400(stage: tuple[AsgiClient, Stage], schema: Any) -> None:
    client, played = stage
    played.script = says("{}")
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = client.chat(response_format=wanted)
    if response.status_code != 200:
        assert error_of(response, 400)["param"] == "response_format.json_schema.schema"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk)
def test_any_parameters_of_a_tool_leave_calls_that_are_json(
    stage: tuple[AsgiClient, Stage], parameters: Any
) -> None:
    client, played = stage
    played.script = says(call_text(city="Oslo", days="3", code='{"a": [1e999, null]}', x=""))
    tool = {"type": "function", "function": {"name": "forecast", "parameters": parameters}}
    response = client.chat(tools=[tool])
    assert response.status_code == 200, response.text
    (arguments,) = arguments_of(response.json()["choices"][0])
    assert arguments.keys() == {"city", "days", "code", "x"}
    assert "Infinity" not in response.text


# the real model


@pytest.fixture(scope="module")
def tiny() -> Iterator[AsgiClient]:
    with asgi_tiny() as client:
        yield client


QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]


def test_the_model_held_to_a_schema_gives_json_that_fits(tiny: AsgiClient) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "wet": {"type": "boolean"}},
        "required": ["city", "wet"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(3):
        answer = both_ways(tiny, response_format=wanted, temperature=1.0, seed=seed, max_tokens=80)
        value = json.loads(answer["message"]["content"])
        assert list(value) == ["city", "wet"]
        assert isinstance(value["wet"], bool)
        assert answer["finish_reason"] == "stop"


def test_a_seed_gives_the_same_choices_again_and_different_ones_at_a_time(tiny: AsgiClient) -> None:
    fields: dict[str, Any] = {"temperature": 2.0, "seed": 11, "max_tokens": 12, "n": 3}
    first, again = (
        [c["message"]["content"] for c in tiny.chat(**fields).json()["choices"]] for _ in range(2)
    )
    streamed = tiny.chat(stream=True, **fields)
    assert first == again == [assembled(streamed, i)["message"]["content"] for i in range(3)]
    assert len(set(first)) == 3


def test_a_bias_forces_a_token(tiny: AsgiClient) -> None:
    (token,) = tokens_of("A")
    answer = both_ways(tiny, logit_bias={str(token): 100}, max_tokens=3)
    assert answer["message"]["content"] == "AAA"


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("tools", [TOOLS, [FORECAST, NOW]])
def test_a_forced_call_of_the_model_is_a_call_with_json_arguments(
    tiny: AsgiClient, choice: Any, tools: list[dict[str, Any]]
) -> None:
    answer = both_ways(tiny, messages=QUESTION, tools=tools, tool_choice=choice, max_tokens=120)
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    for call in answer["message"]["tool_calls"]:
        function = call["function"]
        assert function["name"] == "forecast" or (choice == "required" and len(tools) > 1)
        assert function["name"] == "now" or isinstance(json.loads(function["arguments"])["city"], str)


def test_a_forced_call_of_the_model_follows_its_thoughts(tiny: AsgiClient) -> None:
    (end,) = tokens_of("</think>")
    fields: dict[str, Any] = {"logit_bias": {str(end): 8}, "temperature": 1.0, "seed": 5, "max_tokens": 200}
    answer = both_ways(
        tiny,
        messages=QUESTION,
        tools=[NOW],
        tool_choice="required",
        parallel_tool_calls=False,
        **fields,
        **THINKS,
    )
    assert answer["finish_reason"] == "tool_calls"
    assert arguments_of(answer) == [{}]


def test_the_models_scores_of_a_prompt_are_those_of_its_own_answer(tiny: AsgiClient) -> None:
    said = tiny.complete(prompt="The river was", max_tokens=6, logprobs=0).json()["choices"][0]
    prompt = [*tokens_of("The river was"), *(tokens_of(said["text"]))]
    echoed = tiny.complete(prompt=prompt, echo=True, logprobs=0, max_tokens=1).json()["choices"][0]
    count = len(said["logprobs"]["tokens"])
    first = len(tokens_of("The river was"))
    assert echoed["logprobs"]["tokens"][first : first + count] == said["logprobs"]["tokens"]
    assert echoed["logprobs"]["token_logprobs"][first : first + count] == pytest.approx(
        said["logprobs"]["token_logprobs"], abs=1e-3
    )


@pytest.mark.parametrize("token", [tokens_of("A")[0], END, tokens_of("🙂")[0]])
@pytest.mark.parametrize("stream", [False, True])
def test_one_token_behind_an_echo_has_one_score_whatever_its_text(
    tiny: AsgiClient, token: int, stream: bool
) -> None:
    """lm-evaluation-harness takes the scores of a continuation to end before the last one."""
    prompt = list(tokens_of("The river was wide."))
    fields = {"logit_bias": {str(token): 100}, "echo": True, "logprobs": 1, "max_tokens": 1}
    response = tiny.complete(prompt=prompt, stream=stream, **fields)
    lists = merged(frames(response)) if stream else response.json()["choices"][0]["logprobs"]
    assert {len(values) for values in lists.values()} == {len(prompt) + 1}
    assert lists["tokens"][-1] == ("A" if token == tokens_of("A")[0] else "")
    assert lists["text_offset"][-1] == len("The river was wide.")
    assert lists["token_logprobs"][-1] < 0


@pytest.mark.parametrize(("token", "reason"), [(END, "stop"), (tokens_of("🙂")[0], "length")])
def test_a_token_without_text_is_none_of_a_chats_logprobs(tiny: AsgiClient, token: int, reason: str) -> None:
    choice = both_ways(tiny, logit_bias={str(token): 100}, logprobs=True, max_tokens=1)
    assert choice["logprobs"] == {"content": []}
    assert choice["finish_reason"] == reason


def test_a_forced_call_of_the_model_may_break_off_its_thoughts(tiny: AsgiClient) -> None:
    (mark,) = tokens_of("<tool_call>")
    fields: dict[str, Any] = {"logit_bias": {str(mark): 100}, "parallel_tool_calls": False, "max_tokens": 100}
    answer = both_ways(tiny, messages=QUESTION, tools=[NOW], tool_choice="required", **fields, **THINKS)
    assert answer["finish_reason"] == "tool_calls"
    assert arguments_of(answer) == [{}]
