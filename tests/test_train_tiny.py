"""The embedded model's trainer: the same seed gives the same data, and training text is what the template renders."""

import json
import random
from functools import lru_cache
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from scripts.train_tiny import conversation as c
from scripts.train_tiny.skills import extract, facts, tools
from scripts.train_tiny.skills.faq import INTENTS
from scripts.train_tiny.split import Draw
from scripts.train_tiny.tokenizer import VOCAB, train_tokenizer

FOLDER = Path(c.__file__).parent


def draw(seed: object = 0, side: str = "train") -> Draw:
    return Draw(random.Random(f"test-{seed}"), side, ["ab", "cde", "xyz"])


@lru_cache
def small_tokenizer() -> Tokenizer:
    return train_tokenizer(0, conversations=1500)


def render(messages: list[dict], **more: object) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    template = environment.from_string((FOLDER / "chat_template.jinja").read_text())
    return template.render(messages=messages, **more)


def pieces(seed: object, tokens: int = 512) -> list[tuple[str, bool]]:
    return c.conversation(draw(seed), tokens).pieces


@pytest.mark.parametrize("tokens", [256, 2048])
def test_a_seed_gives_the_same_conversation_every_time(tokens: int) -> None:
    assert pieces(1, tokens) == pieces(1, tokens)
    assert pieces(1, tokens) != pieces(2, tokens)


def test_training_text_is_what_the_template_renders() -> None:
    d = draw()
    toolbox = tools.toolbox(d, 3)
    turn = tools.call(d, toolbox[0])
    assert turn.call is not None
    row = c.Row()
    row.add(c.render_system("Be brief.", toolbox))
    row.add("<|im_start|>user\nHi<|im_end|>\n")
    c.say(row, "Hello!", "")
    row.add(f"<|im_start|>user\n{turn.user}<|im_end|>\n")
    c.say(row, c.render_call(turn.call), "")
    row.add("<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n")
    call = {
        "type": "function",
        "function": {"name": turn.call.name, "arguments": turn.call.arguments},
    }
    rendered = render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!"},
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "ok"},
        ],
        tools=[t.schema for t in toolbox],
    )
    assert rendered == "".join(text for text, _ in row.pieces)


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    history = [{"role": "user", "content": "Hi"}]
    first = render(history)
    for thinking in (True, False):
        more = [*history, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]
        assert render(more, enable_thinking=thinking, add_generation_prompt=True).startswith(first)


def test_consecutive_tool_results_share_one_message() -> None:
    text = render(
        [{"role": "user", "content": "a"}, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    )
    assert text.count("<|im_start|>user") == 2
    assert text.count("<tool_response>") == 2


@pytest.mark.parametrize("seed", range(30))
def test_only_what_the_assistant_says_is_learnt_in_full(seed: int) -> None:
    said = False  # whether an assistant's turn is open
    for text, learnt in pieces(seed):
        assert said or not learnt
        assert "<|im_start|>" not in text or not learnt
        said = (said or "<|im_start|>assistant" in text) and not text.endswith("<|im_end|>")


def test_a_prompt_has_the_tokens_that_training_had() -> None:
    """The empty think block is one piece: its line breaks are one token where they stand together."""
    tokenizer = small_tokenizer()
    row = c.Row()
    c.say(row, "Hello!", "")
    apart = [i for text, _ in row.pieces for i in tokenizer.encode(text).ids]
    assert apart == tokenizer.encode("".join(text for text, _ in row.pieces)).ids


def test_what_is_missing_is_named_before_it_is_missed() -> None:
    for seed in range(200):
        d = draw(seed)
        toolbox = tools.toolbox(d, 3)
        turn = tools.misfit(d, toolbox)
        wanted = turn.answer.removesuffix(f": {tools.NO_FUNCTION}")
        assert wanted != turn.answer
        assert wanted not in {t.kind.description for t in toolbox}
        called = tools.call(d, toolbox[0])
        assert called.answer == f"{toolbox[0].kind.description}:"


def test_functions_are_described_in_held_out_words_only_where_they_are_evaluated() -> None:
    def descriptions(side: str) -> set[str]:
        d = draw(7, side)
        made = [tools.make_tool(d, kind).schema["function"] for kind in tools.KINDS for _ in range(60)]
        return {f["description"].rstrip(".") for f in made if "description" in f}

    own = {kind.description for kind in tools.KINDS}
    assert set(tools.OTHER_DESCRIPTIONS) == own
    held = descriptions("evaluate") - own
    assert len(held) >= len(own)
    assert not held & descriptions("train")


def test_json_by_a_grammar_is_whole_and_its_values_are_the_texts() -> None:
    for seed in range(300):
        turn = extract.values(draw(seed))
        values = json.loads(turn.answer)
        assert "".join(text for text, _ in turn.given) == turn.answer
        assert all(text[-1] in ' "' for text, own in turn.given if not own)
        for value in values.values():
            if isinstance(value, str) and value != extract.UNKNOWN:
                assert value in turn.user


@pytest.mark.parametrize("word", ["otter55", "gate", "Reykjavik", "x7f"])
def test_a_word_is_the_same_tokens_wherever_it_stands(word: str) -> None:
    tokenizer = small_tokenizer()
    ids = tokenizer.encode(word).ids
    for text in (f"it is {word}.", f'"{word}"', f"\n{word}\n", f"<parameter=a>\n{word}\n"):
        inside = tokenizer.encode(text).ids
        assert any(inside[i : i + len(ids)] == ids for i in range(len(inside)))


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = small_tokenizer()
    assert tokenizer.get_vocab_size() == VOCAB
    text = 'Hi  there, it\'s a test:\n\n  indented "text" (with) \u00fcmlaut \u65e5\u672c {"a": 1}\t. \n \n<tool_call>'
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_evaluation_asks_in_wordings_that_training_never_uses() -> None:
    trained = {facts.thing_fact(draw(i), "blue gate", "code").questions[0] for i in range(400)}
    held = {facts.thing_fact(draw(i, "evaluate"), "blue gate", "code").questions[0] for i in range(100)}
    assert held
    assert not held & trained


def test_there_are_sixty_intents_and_fresh_questions_are_in_none() -> None:
    assert len(INTENTS) >= 60
    known = {q.lower().strip("?.! ") for _, questions, _ in INTENTS.values() for q in questions}
    fresh = json.loads((FOLDER / "questions.json").read_text())
    assert len(fresh) == 100
    assert not known & {item["question"].lower().strip("?.! ") for item in fresh}
    answers = " ".join(answer.lower() for answer, _, _ in INTENTS.values())
    for item in fresh:
        assert any(word in answers for word in item["accept"]) or "i can find facts" in item["accept"], item
