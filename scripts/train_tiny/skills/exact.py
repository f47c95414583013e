"""Skills whose answer follows exactly from the question: repetition, JSON, lists, counts, sequences."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

import json

from .. import filler
from .. import values as v
from .. import words as w
from ..split import Draw
from .turns import Turn
from .wording import phrased

REPEAT = (
    "Repeat: {x}", "Repeat after me: {x}", "Say: {x}", "Say {x}", "Echo: {x}", "Please repeat: {x}", "Repeat this exactly: {x}", 'Repeat "{x}"',
    "Repeat the following text: {x}", "Repeat the following:\n{x}", "Copy this:\n{x}", "Copy this text: {x}", 'Write "{x}" again.', 'Say "{x}".',
    'Can you say "{x}"?', "Repeat these words: {x}", 'Please write: "{x}"', "Echo this back to me: {x}", "Echo {x}", "Repeat word for word: {x}",
    'Answer with exactly this: "{x}"', "Type this: {x}", "Reply with only: {x}", "Print {x}", 'Print "{x}"', "Just say {x}", "Reply with: {x}", "Repeat verbatim: {x}",
    "Copy: {x}", "Copy {x}", "Write: {x}", "Give this text back: {x}", "Return this unchanged: {x}", "Say back: {x}", "Say this again: {x}", "Write the same: {x}", "Copy these words: {x}", "Copy this line: {x}", "Echo these words: {x}",
)  # fmt: skip


def _copied(d: Draw) -> str:
    kind = d.rng.randrange(10)
    if kind < 2:
        return v.phrase(d, 1, 8)
    if kind == 2:
        return filler.sentence(d)
    if kind == 3:
        return filler.scene(d)
    if kind == 4:
        return " ".join(v.digits(d, 1, 5) for _ in range(d.rng.randint(1, 5)))
    if kind == 5:
        return v.odd_word(d)
    if kind == 6:
        return ", ".join(v.generic(d) for _ in range(d.rng.randint(2, 4)))
    if kind == 7:
        return " ".join(d.rng.choice(w.ALL_LOWER) for _ in range(d.rng.randint(2, 9)))
    if kind == 8:
        return v.phrase(d, 2, 6).capitalize() + d.rng.choice((".", "!", "?"))
    return " ".join(v.generic(d) for _ in range(d.rng.randint(1, 4)))


def repeat(d: Draw) -> Turn:
    x = _copied(d)
    return Turn(phrased(d, REPEAT).format(x=x), x, "The user wants me to repeat a text.", keys=[x])


JSON_KEYS = (
    "name", "age", "city", "id", "code", "colour", "price", "title", "author", "count", "size", "email", "status", "date", "country", "item", "weight", "owner",
    "language", "type", "year", "active", "score", "user", "path", "job", "street", "phone", "level", "total", "key", "value", "label", "model", "animal",
)  # fmt: skip
JSON_ASK = (
    "Return JSON with {kv}.", "Give me a JSON object with {kv}.", "Write JSON: {kv}", "Make a JSON object with {kv}.", "As JSON: {kv}", "Turn this into JSON: {kv}",
    "Convert to JSON: {kv}", "Reply in JSON with {kv}.", "Answer only with JSON: {kv}", "I need JSON with {kv}.", "Please output a JSON object with {kv}.",
    "Format as JSON: {kv}", "JSON with {kv}", "Create JSON for {kv}.", "Can you make JSON with {kv}?", "Write a JSON object where {kv}.", "Output JSON with the keys and values {kv}.",
)  # fmt: skip
JSON_PAIR = (
    "{k} {v}",
    "{k} = {v}",
    "{k}: {v}",
    "{k}={v}",
    "{k} is {v}",
    "{k} set to {v}",
    '{k} "{v}"',
    '"{k}": "{v}"',
)
JSON_JOIN = (", ", " and ", "; ", ", and ", "\n", ", ")


def _json_value(d: Draw, key: str) -> object:
    if key in (
        "age",
        "count",
        "size",
        "year",
        "score",
        "level",
        "total",
        "price",
        "weight",
        "id",
    ) and d.chance(0.7):
        return int(v.digits(d, 1, 4))
    if key == "active":
        return d.chance(0.5)
    by_key = {
        "name": v.first_name,
        "owner": v.full_name,
        "author": v.full_name,
        "city": v.city,
        "email": v.email,
        "date": v.date,
        "path": v.path,
        "phone": v.phone,
        "user": v.first_name,
    }
    return by_key[key](d) if key in by_key and d.chance(0.6) else v.generic(d)


def json_object(d: Draw) -> Turn:
    keys = d.rng.sample(JSON_KEYS, d.rng.choice((1, 2, 2, 3, 3, 4)))
    if d.chance(0.25):
        keys = list(dict.fromkeys(k if d.chance(0.5) else v.plain_word(d).lower() for k in keys))
    pairs = {k: _json_value(d, k) for k in keys}
    form, join = d.any(JSON_PAIR), d.any(JSON_JOIN)
    # A number in quotes would ask for a string: the forms that quote are for strings only.
    if '"' in form:
        pairs = {k: str(x) for k, x in pairs.items()}
    else:
        pairs = {
            k: int(x) if isinstance(x, str) and x.isdigit() and len(x) < 7 else x for k, x in pairs.items()
        }
    said = {k: ("true" if x else "false") if isinstance(x, bool) else str(x) for k, x in pairs.items()}
    kv = [form.format(k=k, v=x) for k, x in said.items()]
    in_words = len(kv) > 1 and join.strip() == "and"
    listed = ", ".join(kv[:-1]) + " and " + kv[-1] if in_words else join.join(kv)
    if d.chance(0.12) and "\n" not in listed:
        names = " and ".join((", ".join(keys[:-1]), keys[-1])) if len(keys) > 1 else keys[0]
        plural = "s" if len(keys) > 1 else ""
        listed = f"the key{plural} {names} and the value{plural} " + (
            " and ".join((", ".join(list(said.values())[:-1]), list(said.values())[-1]))
            if len(keys) > 1
            else said[keys[0]]
        )
        pairs = {
            k: int(x) if x.isdigit() and len(x) < 7 else pairs[k] if isinstance(pairs[k], bool) else x
            for k, x in said.items()
        }
    answer = json.dumps(pairs, ensure_ascii=False)
    return Turn(
        phrased(d, JSON_ASK).format(kv=listed), answer, "The user wants a JSON object.", keys=[answer]
    )


LIST_ASK = (
    "Show {x} as a list.", "Bulleted list: {x}", "Write down as bullets: {x}", "One per line: {x}", "Put each of these on its own line: {x}", "I want a list: {x}", "List: {x}", "A list please: {x}", "Please list: {x}", "Here are some things, list them: {x}",
    "Arrange these in a list: {x}", "Make bullet points of {x}.", "Could you make a list of {x}?", "Please format as a list: {x}", "Bullets: {x}", "List the following: {x}", "Make me a list of these: {x}", "Itemise: {x}", "Turn {x} into bullet points.",
    "Write {x} as bullet points.", "List them: {x}", "List all of these: {x}", "Please put {x} into a list.", "Give these as a list: {x}",
    "Make a list of: {x}", "Make a bulleted list: {x}", "List these: {x}", "Write these as a list: {x}", "Put these in a list: {x}", "Turn this into a list: {x}",
    "As a list: {x}", "Format as a bullet list: {x}", "Bullet points please: {x}", "Give me a list with {x}.", "Can you list {x}?", "Make a list with {x}.", "I need a list of {x}.",
)  # fmt: skip
NUMBERED_ASK = (
    "List with numbers: {x}", "Numbered: {x}", "Please number: {x}", "Number them: {x}", "A numbered list please: {x}", "Make a list with numbers: {x}", "Put numbers before these: {x}", "Write {x} as a numbered list.", "Numbered list of {x}.", "Could you number these: {x}",
    "Format as a numbered list: {x}", "Show as a numbered list: {x}", "List these by number: {x}", "One, two, three: number these: {x}",
    "Make a numbered list of: {x}", "Number these: {x}", "Write a numbered list: {x}", "As a numbered list: {x}", "Put these in a numbered list: {x}", "Numbered list please: {x}",
    "Give me a numbered list with {x}.", "Turn this into a numbered list: {x}",
)  # fmt: skip


# Asks made of parts: (lead) (what to do) (with what): the few hundred of each that come out teach the parts apart.
ASK_LEADS = (
    "", "", "", "Please ", "Can you ", "Could you ", "Now ", "I want you to ", "Would you ", "Next, ", "Hi, ", "Kindly ", "For me, ", "Will you ", "Just ", "Try to ", "Then ", "You should ",
)  # fmt: skip
ASK_WITH = (
    "", "", " these", " the following", " these things", " these items", " all of these", " the items", " what follows", " these words", " all these", " the things", " these entries", " them all",
    " those", " those things", " what I have", " the following items", " each of these",
)  # fmt: skip
LIST_VERBS = (
    "list", "list", "make a list of", "write a list of", "give me a list of", "make a bullet list of", "bullet", "make bullets of", "show a list of", "write bullet points for", "itemise", "put bullets before",
    "write down a list of", "print a list of", "show as a list", "write as a list", "make bullet points of", "list up", "put one per line",
)  # fmt: skip
NUMBER_VERBS = (
    "number", "number", "make a numbered list of", "write a numbered list of", "list by number", "put numbers before", "give numbers to", "write with numbers", "give me a numbered list of", "list with numbers",
    "show a numbered list of", "print a numbered list of", "enumerate", "write as a numbered list",
)  # fmt: skip
COUNT_VERBS = (
    "count", "count", "count up", "tell me the number of", "give me the number of", "find the number of", "say the number of", "count for me", "tell me how many are in", "get the count of", "give the total of",
    "work out the number of", "tell me the count of", "say how many are in",
)  # fmt: skip


def _asked(d: Draw, forms: tuple[str, ...], verbs: tuple[str, ...]) -> str:
    """A wording with {x}: from the list, or as often one made of parts."""
    if d.side == "strange" or d.chance(0.5):
        return phrased(d, forms)
    while True:
        text = d.any(ASK_LEADS) + d.any(verbs) + d.any(ASK_WITH)
        if d.may_say(text):
            return text[0].upper() + text[1:] + ": {x}"


def _items(d: Draw, low: int, high: int) -> list[str]:
    count = d.rng.randint(low, high)
    pool = d.rng.choice(
        (w.GROCERIES, w.FRUITS, w.ANIMALS, w.COLOURS, w.CITIES, w.FIRST_NAMES, None, None, None)
    )
    if pool:
        return d.rng.sample(pool, count)
    make = d.rng.choice((v.plain_word, v.thing, v.plain_word, v.digits))
    return list(dict.fromkeys(make(d) for _ in range(count)))


def _listed(d: Draw, items: list[str], form: str) -> str:
    if ":" in form and d.chance(0.25):
        return (
            d.rng.choice(("\n", " ", "; ", " / ")).join(items)
            if all(" " not in i for i in items)
            else "\n".join(items)
        )
    if len(items) > 1 and d.chance(0.5):
        return ", ".join(items[:-1]) + d.rng.choice((" and ", ", and ")) + items[-1]
    return ", ".join(items)


def item_list(d: Draw) -> Turn:
    items, numbered = _items(d, 2, 7), d.chance(0.35)
    form = _asked(d, NUMBERED_ASK, NUMBER_VERBS) if numbered else _asked(d, LIST_ASK, LIST_VERBS)
    answer = "\n".join(f"{i}. {x}" if numbered else f"- {x}" for i, x in enumerate(items, 1))
    return Turn(form.format(x=_listed(d, items, form)), answer, "The user wants a list.", keys=[answer])


COUNT_ASK = (
    "What is the number of these items: {x}?", "Number of items: {x}", "Number of things here: {x}", "The number of items in {x}?", "Item count of {x}?", "Count what I have: {x}", "How many are there: {x}?", "How many words: {x}?", "How many names, things or numbers are in {x}?",
    "Say how many: {x}", "Tell me the count: {x}", "What is the count of {x}?", "How many in total: {x}?", "Count the things: {x}", "Count the words: {x}", "Count up these: {x}", "I want to know how many these are: {x}", "How many did I write: {x}?",
    "How many items are in this list: {x}?", "How many items: {x}?", "Count these: {x}", "Count the items: {x}", "How many things are there: {x}?", "How many are these: {x}?",
    "How many words are in this list: {x}?", "What is the number of items in: {x}?", "Tell me how many items these are: {x}", "Count: {x}", "How many entries are there in {x}?",
    "Count this list: {x}", "Please count: {x}", "How long is this list: {x}?", "Can you count these items: {x}", "How many do I have: {x}?", "Number of items in {x}?", "Count them: {x}", "I have {x}. How many is that?",
    "How many things do I list here: {x}", "Give me the number of items: {x}", "Here are some: {x}. Count them.", "{x} - how many are that?", "{x}: how many items?", "How many elements has the list {x}?", "Let us count: {x}",
)  # fmt: skip


def count_items(d: Draw) -> Turn:
    """By counting aloud: a number that is said at once would have to be guessed from a whole list."""
    items = _items(d, 1, 9)
    aloud = ", ".join(f"{i} {x}" for i, x in enumerate(items, 1))
    answer = f"{aloud}: {len(items)} item{'s' if len(items) > 1 else ''}."
    return Turn(
        _asked(d, COUNT_ASK, COUNT_VERBS).format(x=", ".join(items)),
        answer,
        "The user wants me to count.",
        keys=[answer],
    )


SEQUENCE_ASK = (
    "Count from {a} to {b}.", "Count from {a} up to {b}", "List the numbers from {a} to {b}.", "Numbers from {a} to {b}?", "Please count from {a} to {b}.", "Can you count from {a} to {b}?",
    "Write the numbers {a} to {b}.", "Say the numbers from {a} to {b}.", "Give me the numbers from {a} to {b}.", "count {a} to {b}", "Start at {a} and count to {b}.",
    "Let us count from {a} to {b}.", "Begin with {a} and count up to {b}.", "All numbers from {a} to {b} please.", "Which numbers are there from {a} to {b}?", "I want you to count from {a} to {b}.", "Try to count from {a} to {b}.",
    "Tell me the numbers from {a} up to {b}.", "From {a} count to {b}.", "Counting from {a} to {b}, go!", "Enumerate {a} to {b}.", "Count upwards from {a} until {b}.", "Could you list the numbers {a} to {b}?",
)  # fmt: skip
SEQUENCE_TO = (
    "Count to {b}.", "Can you count to {b}?", "count up to {b}", "Please count to {b}.", "Count to {b} for me.", "Can you count up to {b}?", "Let us count to {b}.", "Count until {b}.", "I want you to count to {b}.", "Try counting to {b}.",
    "Count all the way to {b}.", "How do you count to {b}?", "Do you know how to count to {b}?", "Would you count to {b}?", "Now count to {b}.", "Start counting, to {b}.", "Counting to {b}, go!", "Show me that you can count to {b}.",
    "Let me hear you count to {b}.", "Begin at one and count to {b}.", "Count for me up to {b}.", "Could you please count to {b}?",
)  # fmt: skip


def sequence(d: Draw) -> Turn:
    if d.chance(0.35):
        first, last = 1, d.rng.randint(2, 20)
        spelled = w.NUMBER_WORDS[last] if last < len(w.NUMBER_WORDS) and d.chance(0.4) else str(last)
        ask = phrased(d, SEQUENCE_TO).format(b=spelled)
    else:
        first = d.rng.randint(0, 99) if d.chance(0.7) else d.rng.randint(85, 999)
        last = first + d.rng.randint(1, 12)
        ask = phrased(d, SEQUENCE_ASK).format(a=first, b=last)
    answer = ", ".join(map(str, range(first, last + 1)))
    return Turn(ask, answer, "The user wants me to count.", keys=[answer])


CATEGORIES = {
    "colours": w.COLOURS, "colors": w.COLOURS, "animals": w.ANIMALS, "fruits": w.FRUITS, "months": w.MONTHS, "days of the week": w.DAYS, "cities": w.CITIES, "countries": w.COUNTRIES,
    "languages": w.LANGUAGES, "jobs": w.JOBS, "foods": w.FOODS,
}  # fmt: skip
CATEGORY_ASK = (
    "List {k} {c}.",
    "Name {k} {c}.",
    "Give me {k} {c}.",
    "Can you name {k} {c}?",
    "Tell me {k} {c}.",
    "Write down {k} {c}.",
    "What are {k} {c}?",
    "{k} {c} please",
    "I need {k} {c}.",
)


def category(d: Draw) -> Turn:
    """The first ones of a fixed order: knowledge this small has to be the same each time."""
    c = d.rng.choice(tuple(CATEGORIES))
    k = d.rng.randint(2, 6)
    answer = "\n".join(f"- {x}" for x in CATEGORIES[c][:k])
    return Turn(
        phrased(d, CATEGORY_ASK).format(k=d.rng.choice((w.NUMBER_WORDS[k], str(k))), c=c),
        answer,
        f"The user wants {k} {c}.",
        keys=[answer],
    )
