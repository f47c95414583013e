"""The held-out evaluation: wordings, names and values never trained on, through Backburner's own engine."""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from . import document
from .conversation import CALL, GENERATE, NO_THOUGHT, render_call, render_system
from .player import Player
from .skills import backburner, exact, extract, facts, talk, tools
from .skills.turns import Turn
from .split import Draw
from .tokenizer import letter_pieces

HERE = Path(__file__).parent
LENGTHS = {"1k": 1024, "4k": 4096, "16k": 16384, "64k": 65536}
FACTS_PER_TEXT = 10
# Of these, those that are like another one ("the code of the blue gate", "the code of the old gate"): one in a
# text, or nearly half of them where it says so.
FEW_TWINS, MANY_TWINS = 0.1, 0.45
ABSENT_PER_TEXT = 4


@dataclass(slots=True)
class Score:
    right: int = 0
    asked: int = 0
    misses: list[dict[str, str]] = field(default_factory=list)

    def add(self, ok: bool, question: str, wanted: str, got: str) -> None:
        self.right += ok
        self.asked += 1
        if not ok:
            self.misses.append({"question": question[-400:], "wanted": wanted, "got": got})


def prompt(user: str, thinking: bool = False, system: str = "") -> str:
    return system + f"<|im_start|>user\n{user}<|im_end|>\n{GENERATE}" + ("" if thinking else NO_THOUGHT)


def after_thought(text: str) -> tuple[str, str]:
    """Thought and answer of a reply that was begun inside a think block."""
    thought, mark, answer = text.partition("</think>")
    return (thought.strip(), answer.strip()) if mark else ("", text)


def is_one_thought(thought: str) -> bool:
    return bool(thought) and "\n" not in thought and len(thought) < 200 and "<" not in thought


def natural_text(d: Draw, characters: int) -> str:
    """Prose nobody generated: the reference manual that comes with Python."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics.values())
    start = d.rng.randrange(len(whole))
    return (whole[start:] + whole)[:characters]


def plant(d: Draw, text: str, planted: list[facts.Fact]) -> str:
    """Facts between lines or sentences of a foreign text, spread over its whole length."""
    pieces = text.replace(". ", ".\x00").split("\x00")
    for i, fact in enumerate(planted):
        low, high = i * len(pieces) // len(planted), (i + 1) * len(pieces) // len(planted)
        at = d.rng.randrange(low, max(high, low + 1))
        pieces[at] = fact.statement + " " + pieces[at]
    return " ".join(pieces)


def text_of(
    d: Draw, player: Player, kind: str, tokens: int, twins: float = FEW_TWINS
) -> tuple[str, list[facts.Fact]]:
    planted = facts.planted(d, FACTS_PER_TEXT if tokens > 1024 else 5, twins)
    d.rng.shuffle(planted)
    if kind == "natural":
        text = plant(d, natural_text(d, tokens * 3), planted)
    else:
        # One style for so long a text would be monotonous: several documents, each with its share of the facts.
        parts = max(1, tokens // 4096)
        shares = [planted[i::parts] for i in range(parts)]
        text = "\n\n".join(document.write(d, share, tokens // parts) for share in shares)
    ids = len(player.encode(text))
    return (
        (text, planted) if ids <= tokens * 1.25 else (text[: int(len(text) * tokens * 1.25 / ids)], planted)
    )


def recall(
    player: Player, d: Draw, kind: str, tokens: int, count: int, twins: float = FEW_TWINS
) -> tuple[Score, Score]:
    there, absent = Score(), Score()
    while there.asked < count:
        text, planted = text_of(d, player, kind, tokens, twins)
        base = player.read(f"<|im_start|>system\n{text}<|im_end|>")
        for fact in planted:
            if fact.statement not in text:  # lost where a text that came out too long was cut
                continue
            turn = facts.question(d, fact, there=True)
            got = player.answer("\n" + prompt(turn.user), base)
            there.add(fact.value in got, f"{fact.statement} / {turn.user}", fact.value, got)
        for _ in range(ABSENT_PER_TEXT):
            turn = facts.question(d, facts.absent(d, planted), there=False)
            got = player.answer("\n" + prompt(turn.user), base)
            absent.add("I do not know" in got, turn.user, turn.answer, got)
    return there, absent


def skill(player: Player, d: Draw, make: Callable[[Draw], Turn], count: int) -> Score:
    score = Score()
    for _ in range(count):
        turn = make(d)
        got = player.answer(prompt(turn.user))
        score.add(got.strip() == turn.answer.strip(), turn.user, turn.answer, got)
    return score


def tool_calls(
    player: Player, d: Draw, schemas: int, thinking: bool, count: int, forced: bool = False
) -> Score:
    """One line on what it is for, in thoughts or before the call, then exactly the call; or at once if it is forced."""
    score = Score()
    for _ in range(count):
        toolbox = tools.toolbox(d, schemas)
        turn = tools.call(d, d.rng.choice(toolbox))
        assert turn.call is not None
        begun = CALL if forced else ""
        got = player.answer(prompt(turn.user, thinking, render_system("", toolbox)) + begun)
        said, mark, call = (begun + got).partition(CALL)
        wanted = render_call(turn.call)
        ok = (mark + call).strip() == wanted and (is_one_thought(after_thought(said)[0]) or not thinking)
        score.add(ok and (thinking or "\n" not in said.strip()), turn.user, wanted, got)
    return score


def extractions(player: Player, d: Draw, count: int) -> Score:
    """Values of JSON whose keys are given one after the other, each after what the model has said itself."""
    score = Score()
    for _ in range(count):
        user, wanted = extract.filled(d)
        said = prompt(user)
        ok, got = True, ""
        for lead, text in extract.pairs(wanted):
            end = '"' if lead.endswith('"') else "]" if text.startswith("[") else ""
            more = player.answer(said + got + lead, limit=24)
            more = more.partition(end)[0] + end if end else more.split(",")[0].split("}")[0]
            got += lead + more
            ok = ok and more == text.removesuffix("}")
        score.add(ok, user, json.dumps(dict(wanted), ensure_ascii=False), got + "}")
    return score


def no_calls(player: Player, d: Draw, count: int) -> Score:
    """Requests that no function fits, and talk that needs none."""
    score = Score()
    for i in range(count):
        toolbox = tools.toolbox(d, d.rng.randint(1, 5))
        turn = (
            tools.misfit(d, toolbox)
            if i % 2
            else d.rng.choice((talk.small_talk, backburner.question, exact.repeat))(d)
        )
        got = player.answer(prompt(turn.user, False, render_system("", toolbox)))
        score.add(CALL not in got, turn.user, turn.answer, got)
    return score


def tool_results(player: Player, d: Draw, count: int) -> Score:
    score = Score()
    while score.asked < count:
        toolbox = tools.toolbox(d, d.rng.randint(1, 3))
        turn = tools.call(d, d.rng.choice(toolbox))
        if turn.call is None or turn.result is None:
            continue
        history = f"<|im_start|>user\n{turn.user}<|im_end|>\n{GENERATE}{NO_THOUGHT}{render_call(turn.call)}<|im_end|>\n"
        result = f"<|im_start|>user\n<tool_response>\n{turn.result}\n</tool_response><|im_end|>\n{GENERATE}{NO_THOUGHT}"
        got = player.answer(render_system("", toolbox) + history + result)
        score.add(all(k in got for k in turn.keys), turn.user, turn.result_answer, got)
    return score


def inline(player: Player, d: Draw, count: int) -> Score:
    score = Score()
    for _ in range(count):
        told, asked = facts.inline_pair(d)
        between = exact.category(d)
        history = "".join(
            f"<|im_start|>user\n{t.user}<|im_end|>\n{GENERATE}{NO_THOUGHT}{t.answer}<|im_end|>\n"
            for t in (told, between)
        )
        got = player.answer(history + prompt(asked.user))
        score.add(asked.keys[0] in got, told.user + " / " + asked.user, asked.answer, got)
    return score


def thinking_form(player: Player, d: Draw, count: int) -> Score:
    """One sentence in the block when it is on; no block when it is off."""
    score = Score()
    for i in range(count):
        turn = d.rng.choice(
            (talk.small_talk, backburner.question, exact.repeat, exact.json_object, talk.unknown)
        )(d)
        got = player.answer(prompt(turn.user, i % 2 == 0))
        if i % 2 == 0:
            thought, answer = after_thought(got)
            score.add(
                is_one_thought(thought) and bool(answer) and "think>" not in answer,
                turn.user,
                turn.thought,
                got,
            )
        else:
            score.add("think>" not in got, turn.user, turn.answer, got)
    return score


def fresh_questions(player: Player) -> Score:
    """Hand-written, in no list of the generator; right if the answer has one of the accepted words."""
    score = Score()
    for item in json.loads((HERE / "questions.json").read_text()):
        got = player.answer(prompt(item["question"]))
        score.add(
            any(word in got.lower() for word in item["accept"]),
            item["question"],
            " | ".join(item["accept"]),
            got,
        )
    return score


def skills(player: Player, d: Draw, count: int, lengths: list[str]) -> Iterator[tuple[str, Score]]:
    yield "Backburner, 100 fresh questions", fresh_questions(player)
    yield "Backburner, held-out wordings", skill(player, d, backburner.question, count)
    yield "small talk", skill(player, d, talk.small_talk, count)
    yield "unknown things -> says so", skill(player, d, talk.unknown, count)
    yield "repetition", skill(player, d, exact.repeat, count)
    yield "JSON", skill(player, d, exact.json_object, count)
    yield "lists", skill(player, d, exact.item_list, count)
    yield "counting items", skill(player, d, exact.count_items, count)
    yield "counting sequences", skill(player, d, exact.sequence, count)
    yield "values of JSON with forced keys", extractions(player, d, count)
    yield "told and asked in a chat", inline(player, d, count)
    for schemas in (1, 3, 5):
        for thinking in (False, True):
            name = (
                f"tool call, {schemas} schema{'s' if schemas > 1 else ''}{', thinking' if thinking else ''}"
            )
            yield name, tool_calls(player, d, schemas, thinking, count)
    yield "tool call, 3 schemas, forced", tool_calls(player, d, 3, False, count, forced=True)
    yield "no call when none fits", no_calls(player, d, count)
    yield "answer from a tool's result", tool_results(player, d, count)
    yield "think block on and off", thinking_form(player, d, count)


def contexts(player: Player, d: Draw, count: int, lengths: list[str]) -> Iterator[tuple[str, Score]]:
    base = d.rng.random()
    for length in lengths:
        # Each length has cases of its own, so that lengths may be run side by side.
        d.rng.seed(f"{base}-{length}")
        for kind in ("synthetic", "natural"):
            there, absent = recall(player, d, kind, LENGTHS[length], count)
            yield f"recall at {length}, {kind}", there
            yield f"absent at {length}, {kind}", absent
    if "4k" in lengths:
        d.rng.seed(f"{base}-twins")
        there, absent = recall(player, d, "natural", LENGTHS["4k"], count, MANY_TWINS)
        yield "recall at 4k, many twins", there
        yield "absent at 4k, many twins", absent


def unseen(player: Player, d: Draw, count: int, lengths: list[str]) -> Iterator[tuple[str, Score]]:
    """The same skills asked for in forms that training saw in no wording."""
    for name, make in (
        ("repetition", exact.repeat),
        ("JSON", exact.json_object),
        ("lists", exact.item_list),
        ("counting items", exact.count_items),
    ):
        yield f"unseen forms: {name}", skill(player, d, make, count)
    yield "unseen forms: tool call, 3 schemas", tool_calls(player, d, 3, False, count)
    if "1k" in lengths:
        there, absent = recall(player, d, "natural", LENGTHS["1k"], count)
        yield "unseen forms: recall at 1k, natural", there
        yield "unseen forms: absent at 1k, natural", absent


# Each with cases of its own, so that parts that run side by side give what they give one after the other.
PARTS = {"skills": (skills, "evaluate"), "recall": (contexts, "evaluate"), "unseen": (unseen, "strange")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="an exported folder")
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--count", type=int, default=100, help="cases of each skill")
    parser.add_argument("--quick", action="store_true", help="20 cases each, and no context beyond 4k")
    parser.add_argument("--lengths", nargs="*", choices=tuple(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write scores and misses here")
    args = parser.parse_args()
    count, lengths = (20, ["1k", "4k"]) if args.quick else (args.count, args.lengths)
    player = Player(args.model)
    pieces = letter_pieces(Tokenizer.from_file(str(args.model / "tokenizer.json")))
    scores: dict[str, dict] = {}
    started = time.monotonic()
    for part in args.only:
        make, side = PARTS[part]
        d = Draw(random.Random(f"evaluate-{args.seed}-{part}"), side, pieces)
        for name, score in make(player, d, count, lengths):
            print(
                f"{name:34} {score.right:4}/{score.asked:<4} {score.right / max(1, score.asked):6.1%}",
                flush=True,
            )
            scores[name] = {"right": score.right, "asked": score.asked, "misses": score.misses}
            if args.json:
                args.json.write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
