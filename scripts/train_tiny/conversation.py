"""One training row: a setting, then turns of many skills, rendered as the chat template renders them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from . import document
from .skills import backburner, exact, extract, facts, talk, tools
from .skills.turns import Call, Turn
from .split import Draw

TOOLS_HEAD = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, reply with:\n"
    "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)
GENERATE, NO_THOUGHT = "<|im_start|>assistant\n<think>\n", "\n</think>\n\n"
CALL = "<tool_call>"
# Of the calls without thoughts, those that a client forces.
FORCED_SHARE = 0.2
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are tiny, a demonstration model.",
    "Answer briefly.",
    "Be helpful and honest.",
    "You are a friendly assistant.",
    "You answer questions about the text.",
    "You are an AI assistant.",
    "Answer in one sentence.",
    "You are Backburner's assistant.",
    "Help the user.",
    "If you do not know something, say so.",
    "You are a helpful assistant that can call functions.",
)
USER_DOCUMENTS = (
    "{t}\n\n{q}",
    "{t}\n{q}",
    "{t} {q}",
    "Text:\n{t}\n\nQuestion: {q}",
    "{q}\n\n{t}",
    "Here is a text: {t}\n\n{q}",
    "Read this and answer.\n{t}\n\n{q}",
    "{t}\n\nQuestion: {q}",
)

# How often each skill is drawn where nothing in the setting asks for another one.
FREE: tuple[tuple[float, Callable[[Draw], Turn]], ...] = (
    (8.0, backburner.question),
    (3.5, talk.small_talk),
    (2.4, talk.unknown),
    (3.0, exact.repeat),
    (3.5, exact.json_object),
    (2.8, exact.item_list),
    (2.0, exact.count_items),
    (1.2, exact.sequence),
    (0.6, exact.category),
    (2.2, extract.values),
    (0.6, facts.inline_unknown),
    (0.8, facts.nowhere),
)


# Of the questions about a text, those whose answer it does not hold.
ABSENT_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Mix:
    """What rows are made of in one course of the training."""

    settings: tuple[float, ...]  # weights of SETTINGS
    long_settings: tuple[float, ...]  # the same from 2,048 tokens
    # Numbers of functions in rows up to 256 tokens, up to 512, and beyond. A schema has 80 tokens or so: what it takes
    # is not left for calls.
    functions: tuple[tuple[int, ...], ...]
    misfits: float  # of the requests where there are functions, those that none of them fits
    requests: float  # of the turns where there are functions, those that are for them
    thinking: float  # rows whose assistant thinks
    dense: bool  # with more facts


SETTINGS = ("none", "system", "tools", "document")
# A course each.
MIXES = (
    Mix((22, 6, 38, 34), (5, 0, 33, 62), ((1, 1, 1, 2), (1, 2, 3, 3), (1, 2, 3, 4, 5, 5)), 0.25, 0.72, 0.25, False),
    # Rows are dense with what is hardest: one function of several, and facts that are like each other or missing.
    Mix((16, 4, 44, 36), (4, 0, 44, 52), ((1, 2), (2, 3, 3, 4), (2, 3, 4, 5, 5)), 0.2, 0.8, 0.35, True),
    # More of everything else again. With 25 % misfits half of the misses among five functions were refusals.
    Mix((28, 6, 38, 28), (6, 0, 44, 50), ((1, 2), (2, 3, 3, 4), (2, 3, 4, 5, 5)), 0.18, 0.8, 0.35, True),
)  # fmt: skip


@dataclass(slots=True)
class Row:
    """Text in pieces; what is learnt in full is what the assistant generates."""

    pieces: list[tuple[str, bool]] = field(default_factory=list)
    chars: int = 0

    def add(self, text: str, learnt: bool = False) -> None:
        self.pieces.append((text, learnt))
        self.chars += len(text)


def render_call(call: Call) -> str:
    text = f"{CALL}\n<function={call.name}>\n"
    for key, value in call.arguments.items():
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text += f"<parameter={key}>\n{said}\n</parameter>\n"
    return text + "</function>\n</tool_call>"


def render_system(system: str, toolbox: list[tools.Tool]) -> str:
    if not toolbox:
        return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    listed = "".join("\n" + json.dumps(t.schema, ensure_ascii=False) for t in toolbox)
    return TOOLS_HEAD + listed + TOOLS_TAIL + (f"\n\n{system}" if system else "") + "<|im_end|>\n"


def say(row: Row, text: str | list[tuple[str, bool]], thought: str) -> None:
    """A reply; in pieces where not all of it is the model's own."""
    if thought:
        row.add(GENERATE)
        row.add(thought + NO_THOUGHT, True)
    else:
        row.add(GENERATE + NO_THOUGHT)
    for piece, own in [(text, True)] if isinstance(text, str) else text:
        row.add(piece, own)
    row.add("<|im_end|>", True)
    row.add("\n")


def say_call(d: Draw, row: Row, turn: Turn, thought: str) -> None:
    """What it is for, in thoughts or aloud, then the call; now and then at once, where a client forces one.

    What is forced is not learnt: else the model begins so by itself, and calls what does not fit.
    """
    assert turn.call is not None
    call = render_call(turn.call)
    if thought:
        say(row, call, thought)
    elif d.chance(FORCED_SHARE):
        say(row, [(CALL, False), (call.removeprefix(CALL), True)], "")
    else:
        say(row, f"{turn.answer}\n{call}", "")


def take_turn(d: Draw, row: Row, turn: Turn, thinking: float) -> None:
    def thought(text: str) -> str:
        return text if d.chance(thinking) else ""

    row.add(f"<|im_start|>user\n{turn.user}<|im_end|>\n")
    if turn.call is None:
        thinks = thought(turn.thought)
        # Thoughts have said what a function would be for.
        answer = tools.NO_FUNCTION if thinks and turn.answer.endswith(tools.NO_FUNCTION) else turn.answer
        say(row, turn.given or answer, thinks)
        return
    say_call(d, row, turn, thought(turn.thought))
    if turn.result is not None and d.chance(0.7):
        row.add(f"<|im_start|>user\n<tool_response>\n{turn.result}\n</tool_response><|im_end|>\n")
        say(row, turn.result_answer, thought("The tool has answered."))


def free_turn(d: Draw) -> Turn:
    (make,) = d.rng.choices([m for _, m in FREE], weights=[weight for weight, _ in FREE])
    return make(d)


class Questions:
    """Each planted fact is asked for once: a second time the answer could be copied from the first."""

    def __init__(self, d: Draw, planted: list[facts.Fact]) -> None:
        self.planted = planted
        self._left = d.rng.sample(planted, len(planted))

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self, d: Draw) -> Turn:
        if d.chance(ABSENT_SHARE) or not self._left:
            return facts.question(d, facts.absent(d, self.planted), there=False)
        return facts.question(d, self._left.pop(), there=True)


def fact_count(d: Draw, tokens: int, dense: bool) -> int:
    low, high = (1, 5) if tokens <= 512 else (2, 10) if tokens <= 1536 else (4, 16)
    return d.rng.randint(2 * low, high * 8 // 5) if dense else d.rng.randint(low, high)


def conversation(d: Draw, tokens: int, mix: Mix = MIXES[0]) -> Row:
    """A row that is at least `tokens` long when it is encoded (it is cut there)."""
    row = Row()
    rng = d.rng
    (setting,) = rng.choices(SETTINGS, mix.settings)
    if tokens >= 2048:  # what is long is a document, else the row would be dozens of unrelated turns
        (setting,) = rng.choices(SETTINGS, mix.long_settings)
    thinking = 0.8 if d.chance(mix.thinking) else 0.0
    functions = mix.functions[0 if tokens <= 256 else 1 if tokens <= 512 else 2]
    toolbox = tools.toolbox(d, rng.choice(functions), wide=True) if setting == "tools" else []
    planted: list[facts.Fact] = []
    text = system = ""
    place = "none"
    if setting == "document" or (toolbox and tokens >= 512 and d.chance(0.35)):
        planted = facts.planted(d, fact_count(d, tokens, mix.dense))
        # From nothing but facts to nearly nothing but filler.
        share = (
            rng.uniform(0.05, 0.5)
            if tokens <= 512
            else rng.uniform(0.05, 0.7)
            if tokens <= 1024
            else rng.uniform(0.4, 0.85)
        )
        text = document.write(d, planted, int(tokens * share))
        place = rng.choices(("system", "user", "result"), weights=(5, 4, 1.5))[0]
    if place == "system":
        system = text
    elif setting == "system" or d.chance(0.15):
        system = d.wording(SYSTEM_PROMPTS)
    if place == "result" and not toolbox:
        toolbox = [tools.make_tool(d, next(k for k in tools.KINDS if "read_file" in k.names))]
    row.add(render_system(system, toolbox))
    questions = Questions(d, planted)
    if place == "user":
        first = questions.next(d)
        first.user = rng.choice(USER_DOCUMENTS).format(t=text, q=first.user)
        take_turn(d, row, first, thinking)
    elif place == "result":
        tool = rng.choice(toolbox)
        turn = tools.call(d, tool)
        asked = questions.next(d)
        turn.user = rng.choice(("{a} {q}", "{q} {a}", "{a}\n{q}")).format(a=turn.user, q=asked.user)
        turn.result, turn.result_answer = text, asked.answer
        row.add(f"<|im_start|>user\n{turn.user}<|im_end|>\n")
        assert turn.call is not None
        say_call(d, row, turn, turn.thought if thinking else "")
        row.add(f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n")
        say(row, asked.answer, asked.thought if thinking else "")
    waiting: list[
        tuple[int, Turn]
    ] = []  # questions about what the user has told, and how many turns from now
    # Generous: the tokens left over are cut, tokens missing would be padding.
    while row.chars < tokens * 4.2:
        waiting = [(n - 1, t) for n, t in waiting]
        due = [t for n, t in waiting if n <= 0]
        if due:
            waiting = [(n, t) for n, t in waiting if n > 0]
            for turn in due:
                take_turn(d, row, turn, thinking)
            continue
        if planted and d.chance(0.85 if questions else 0.12):
            turn = questions.next(d)
        elif toolbox and d.chance(mix.requests):
            turn = tools.misfit(d, toolbox) if d.chance(mix.misfits) else tools.call(d, rng.choice(toolbox))
        elif d.chance(0.1):
            told, asked = facts.inline_pair(d)
            take_turn(d, row, told, thinking)
            waiting.append((rng.choice((1, 1, 2, 3)), asked))
            continue
        else:
            turn = free_turn(d)
            # "How is the weather in Oslo?" is both: where there are functions, it is theirs to answer.
            while toolbox and turn.answer == talk.FALLBACK and tools.FUNCTION_WORDS.search(turn.user):
                turn = talk.unknown(d)
        take_turn(d, row, turn, thinking)
    return row


def corpus_text(d: Draw) -> str:
    """A conversation for the tokenizer to learn from."""
    return "".join(text for text, _ in conversation(d, 400).pieces)
