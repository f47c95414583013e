"""Answers kept to JSON: by any model, at any temperature, at once or after its thoughts."""

import contextlib
import json
import time
from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from backburner.engine.grammar import MAX_SCHEMA_CHARACTERS, Grammars, check_grammar
from backburner.engine.request import GenerationRequest, Grammar, SamplingParams
from backburner.errors import GrammarError
from benchmarks.answer import answer_tokens
from tests.host import chat, host, link_to, serving, tiny, tokenizer
from tests.test_split_decode import MODEL, split, through

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["cat", "dög", None]},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}, "maxItems": 2},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    }
)


def fits(value: dict) -> bool:
    return (
        list(value) == ["name", "age", "kind", "tags"]
        and len(value["name"]) <= 8
        and 0 <= value["age"] <= 150
        and value["kind"] in ("cat", "dög", None)
        and len(value["tags"]) <= 2
    )


def answer(runner, prompt: list[int], limit: int = 200, **kwargs) -> tuple[str, bool]:
    """The text, and whether it came to its end."""
    state = runner.start(GenerationRequest("r", tuple(prompt), limit, **kwargs))
    tokens: list[int] = []
    try:
        for token in islice(answer_tokens(runner, state, len(prompt)), limit):
            if runner.is_end(token):
                return tokenizer().decode(tokens), True
            tokens.append(token)
        return tokenizer().decode(tokens), False
    finally:
        runner.finish(state)


@pytest.fixture(scope="module")
def runner():
    with host(sessions=1) as made:
        yield made


@pytest.mark.parametrize("seed", range(20))
def test_a_schema_is_kept_whatever_is_drawn(runner, seed: int) -> None:
    sampling = SamplingParams(temperature=1.0 + seed / 10, seed=seed, presence_penalty=0.5)
    text, ended = answer(runner, chat("Hi, I am Maria."), sampling=sampling, grammar=Grammar(SCHEMA))
    assert ended
    assert fits(json.loads(text)), text


def test_greedy_keeps_it_too_and_any_object_is_an_object(runner) -> None:
    text, ended = answer(runner, chat("Hi!"), grammar=Grammar(SCHEMA))
    assert ended
    assert fits(json.loads(text)), text
    # A small model finds no end by itself.
    bias = tuple((tokenizer().encode(end)[0], 6.0) for end in ("}", '"}', "]", '"'))
    sampling = SamplingParams(temperature=1.0, seed=1, logit_bias=bias)
    text, ended = answer(runner, chat("Hi!"), 400, sampling=sampling, grammar=Grammar())
    assert ended
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("seed", range(5))
def test_after_its_thoughts_comes_the_json(runner, seed: int) -> None:
    prompt = tokenizer().apply_chat_template(
        [{"role": "user", "content": "Who are you?"}], add_generation_prompt=True, enable_thinking=True
    )
    end = tokenizer().encode("</think>")[0]
    # Untrained thoughts may never end: the bias ends them, and would write it into the JSON if it could.
    sampling = SamplingParams(temperature=1.2, seed=seed, logit_bias=((end, 5.0),))
    text, ended = answer(
        runner, list(prompt), 300, sampling=sampling, grammar=Grammar(SCHEMA, after="</think>")
    )
    assert ended
    thoughts, mark, rest = text.partition("</think>")
    assert mark
    assert fits(json.loads(rest)), text
    assert not thoughts.lstrip().startswith('{"name"')


def allowed(guide) -> set[int]:
    row = guide.mask(mx.zeros(tiny().model.vocab_size))
    return set(np.flatnonzero(np.isfinite(np.array(row))).tolist())


def test_only_end_tokens_are_left_when_it_is_complete_and_none_before() -> None:
    vocabulary, ends = tiny().model.vocab_size, set(tokenizer().eos_token_ids)
    grammars = Grammars(tokenizer(), vocabulary)
    assert grammars.guide(None) is None
    guide = grammars.guide(Grammar('{"enum": ["x"]}'))
    for token in tokenizer().encode('"x"'):
        assert not ends & allowed(guide)
        guide.push(token)
    assert allowed(guide) == ends
    for token in ends:
        guide.push(token)
        assert allowed(guide) == ends


def test_the_mark_counts_however_it_is_split_into_tokens() -> None:
    vocabulary = tiny().model.vocab_size
    guide = Grammars(tokenizer(), vocabulary).guide(Grammar(after="END-END"))
    for token in tokenizer().encode("some END-EN, ENEND-END"):
        assert allowed(guide) == set(range(vocabulary)) - set(tokenizer().eos_token_ids)
        guide.push(token)
    assert {tokenizer().decode([t])[0] for t in allowed(guide)} == {"{"}


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.5, top_k=5, seed=4)])
def test_split_decode_keeps_it_with_the_same_tokens(sampling: SamplingParams) -> None:
    def asked(runner) -> tuple[str, bool]:
        return answer(runner, chat("Hi!"), sampling=sampling, grammar=Grammar(SCHEMA))

    with host() as alone:
        expected = asked(alone)
    with serving(model=MODEL) as server, split(lambda: link_to(server)) as runner:
        assert asked(runner) == expected
        assert through(runner, chat("Hi!"), sampling), "and the next request is free again"
    assert fits(json.loads(expected[0]))


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


DEFINITIONS = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {
    "d40": {"type": "null"}
}

NASTY = {
    "enum": json.dumps({"enum": [f"v{i}" for i in range(15_000)]}),
    "properties": json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(4000)}}),
    "products": json.dumps(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(4)]} for i in range(12)]}
    ),
    "repeats": json.dumps({"type": "string", "pattern": "((((a{1,50}){1,50}){1,50}){1,50})"}),
    "backtracking": json.dumps({"type": "string", "pattern": "^(a|aa)+(x+x+)+y$"}),
    "lengths": json.dumps(
        {"type": "array", "minItems": 10**5, "items": {"minLength": 10**6, "type": "string"}}
    ),
    "references": json.dumps({"$defs": DEFINITIONS, "$ref": "#/$defs/d0"}),
    "nesting": nested(100),
}


@pytest.mark.parametrize("name", NASTY)
def test_checking_takes_no_seconds_whatever_the_answer(name: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(GrammarError):
        check_grammar(NASTY[name])
    assert time.monotonic() - began < 5.0, "alone it takes 0.2 s; the rest is for a busy machine"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"const": "\\ud800"}', "cannot be read"),
        (nested(100_000)[:MAX_SCHEMA_CHARACTERS], "cannot be read"),
        (" " * MAX_SCHEMA_CHARACTERS + "{}", "at most"),
        ('{"type": 5}', "type must be"),
        ('{"$ref": "https://example.com/x"}', "not present"),
        ('{"$ref": "#"}', "cannot be kept"),
        ('{"not": {"type": "string"}}', "not"),
        ('{"type": "string", "pattern": "(?=a)b"}', "regex"),
        ('{"required": ["a"], "properties": {"a": false}, "type": "object"}', "Unsatisfiable"),
        ('{"uniqueItems": true, "x-guidance": {"lenient": true}, "type": "array"}', "uniqueItems"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_name(schema: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as refused:
        check_grammar(schema)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "schema", ["{}", '{"type": "object"}', SCHEMA, '{"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}']
)
def test_a_good_schema_passes(schema: str) -> None:
    check_grammar(schema)
