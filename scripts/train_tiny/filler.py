"""Text between the facts: plain sentences, prose-like paragraphs, logs, settings, lists, markup, and noise."""

# ruff: noqa: E501
# Templates of sentences: a broken line would hide what comes out.

from . import values as v
from . import words as w
from .split import Draw


def _noun_phrase(d: Draw) -> str:
    article = d.rng.choice(
        ("the", "the", "a", "this", "that", "every", "our", "their", "his", "her", "some", "no")
    )
    adjective = d.rng.choice(w.ADJECTIVES) + " " if d.chance(0.4) else ""
    return f"{article} {adjective}{d.rng.choice((*w.NOUNS, *w.ABSTRACT))}"


def _clause(d: Draw) -> str:
    r = d.rng
    kind = r.randrange(9)
    subject = (
        _noun_phrase(d)
        if d.chance(0.6)
        else r.choice((v.first_name(d), "it", "they", "we", "you", "people", "nobody"))
    )
    verb = r.choice(w.VERBS)
    if kind == 0:
        return f"{subject} {r.choice(w.PAST)} {_noun_phrase(d)}"
    if kind == 1:
        return f"{_noun_phrase(d)} {r.choice(('is', 'was', 'seems', 'stays', 'became', 'looked'))} {r.choice(w.ADJECTIVES)}"
    if kind == 2:
        return f"{subject} {r.choice(('can', 'may', 'must', 'should', 'will', 'could', 'would'))} {r.choice(('not ', '', ''))}{verb} {_noun_phrase(d)}"
    if kind == 3:
        return f"{subject} {r.choice(w.PAST)} {_noun_phrase(d)} {r.choice(('in', 'near', 'behind', 'from', 'to', 'with', 'by', 'for', 'of', 'at', 'on'))} {_noun_phrase(d)}"
    if kind == 4:
        return f"there {r.choice(('is', 'are', 'was', 'were'))} {r.choice(('no', 'some', 'many', 'a few', 'enough'))} {r.choice(w.NOUNS)}s {r.choice(('in', 'near', 'behind'))} the {r.choice(w.PLACES)}"
    if kind == 5:
        return f"{_noun_phrase(d)} is {r.choice(('used to', 'able to', 'meant to', 'there to'))} {verb} {_noun_phrase(d)}"
    if kind == 6:
        return f"{_noun_phrase(d)} of {_noun_phrase(d)} {r.choice(('has', 'had', 'needs', 'gives', 'returns', 'takes', 'holds', 'contains'))} {_noun_phrase(d)}"
    if kind == 7:
        return f"{subject} {r.choice(w.PAST)} {r.choice(w.ADVERBS)}"
    return f"{_noun_phrase(d)} {r.choice(('is', 'was'))} {r.choice(w.PAST)} by {_noun_phrase(d)}"


def sentence(d: Draw) -> str:
    r = d.rng
    parts = [_clause(d)]
    while d.chance(0.35) and len(parts) < 3:
        parts.append(
            r.choice(
                (
                    " and ",
                    ", but ",
                    ", so ",
                    " because ",
                    " when ",
                    " if ",
                    ", which means that ",
                    " while ",
                    " or ",
                )
            )
            + _clause(d)
        )
    text = "".join(parts)
    if d.chance(0.15):
        text = (
            r.choice(
                (
                    "however, ",
                    "in general, ",
                    "for example, ",
                    "later that day, ",
                    "as a result, ",
                    "at first, ",
                    "in the morning, ",
                )
            )
            + text
        )
    return text[0].upper() + text[1:] + r.choice((".", ".", ".", ".", ".", "!", "?", ";", ":"))[0]


SCENES = (
    "The river was calm and the boats stayed in the {p}.",
    "A {a} wind came from the {p}, and the {n} moved a little.",
    "{f} walked through the {p} and looked at the {n}.",
    "Nobody in the {p} had seen such a {a} {n} before.",
    "The {n} stood next to the {n2} for many years.",
    "On {day} the {p} was full of people.",
    "They talked about the {n} until it was late.",
    "It rained for {k} days, and the {n} stayed in the {p}.",
    "{f} made some tea and read a {a} book.",
    "The path to the {p} leads past a {a} {n}.",
    "There was a {n} on the table and a {n2} under it.",
    "In {m} the days are long and the {p} is quiet.",
    "{f} and {f2} met at the {p} and spoke about the weather.",
    "The sun rose over the {p}, and the birds began to sing.",
    "A {n} costs {k} euros at the {p}.",
    "Every {day} at {k} o'clock the {n} is cleaned.",
    "{f} wrote a long letter about the {a} {n}.",
    "The old {n} was sold, and a new {n2} was bought for the {p}.",
)


def scene(d: Draw) -> str:
    r = d.rng
    return r.choice(SCENES).format(
        p=r.choice(w.PLACES), a=r.choice(w.ADJECTIVES), n=r.choice(w.NOUNS), n2=r.choice(w.NOUNS), f=v.first_name(d),
        f2=v.first_name(d), day=r.choice(w.DAYS), m=r.choice(w.MONTHS), k=r.randint(2, 30),
    )  # fmt: skip


def log_line(d: Draw) -> str:
    r = d.rng
    stamp = r.choice(
        (
            f"{v.clock(d)}:{r.randint(10, 59)}",
            f"2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d} {v.clock(d)}",
        )
    )
    level = r.choice(("INFO", "WARN", "ERROR", "DEBUG", "info", "[ok]"))
    what = r.choice(
        (f"{r.choice(w.NOUNS)} {r.choice(w.PAST)} in {r.randint(1, 900)} ms", f"worker {r.randint(0, 9)} {r.choice(w.PAST)} {v.path(d)}",
         f"request {v.odd_word(d)} {r.choice(w.PAST)}", f"{r.choice(w.NOUNS)}={r.randint(0, 999)} {r.choice(w.NOUNS)}={v.plain_word(d)}")
    )  # fmt: skip
    return f"{stamp} {level} {what}\n"


def setting(d: Draw) -> str:
    return f"{d.rng.choice(w.NOUNS)}_{d.rng.choice(w.ABSTRACT)} {d.rng.choice(('=', ':', '->'))} {v.generic(d)}\n"


def bullets(d: Draw) -> str:
    mark = d.rng.choice(("- ", "* ", "  - ", "1. "))
    return "\n" + "".join(f"{mark}{v.phrase(d, 1, 5)}\n" for _ in range(d.rng.randint(2, 6)))


def markup(d: Draw) -> str:
    r = d.rng
    kind = r.randrange(6)
    if kind == 0:
        return f"\n{'#' * r.randint(1, 3)} {v.phrase(d, 1, 4).capitalize()}\n\n"
    if kind == 1:
        return f"\n    >>> {v.plain_word(d)}({v.plain_word(d)}, {v.digits(d, 1, 3)})\n    {v.generic(d)}\n\n"
    if kind == 2:
        return f'\nSee also "{r.choice(w.ABSTRACT)}" and ``{v.plain_word(d)}.{v.plain_word(d)}()`` ({r.choice(w.NOUNS)}, section {r.randint(1, 9)}.{r.randint(1, 9)}). '
    if kind == 3:
        return f'\n   {v.plain_word(d)}_stmt ::= "{v.plain_word(d)}" {v.plain_word(d)} ["{r.choice("=:,;")}" {v.plain_word(d)}]*\n'
    if kind == 4:
        return f'{{"{v.plain_word(d)}": "{v.generic(d)}", "{v.plain_word(d)}": {v.digits(d, 1, 4)}}}\n'
    return f"def {v.plain_word(d)}({v.plain_word(d)}):\n    return {v.plain_word(d)}.{v.plain_word(d)}({v.digits(d, 1, 2)})\n\n"


def soup(d: Draw) -> str:
    """Random pieces: whatever text comes, something like it has been seen."""
    pieces = d.pieces or w.ALL_LOWER
    return (
        "".join(
            d.rng.choice(pieces) + d.rng.choice(("", " ", " ", ", ")) for _ in range(d.rng.randint(8, 30))
        )
        + "\n"
    )


def salad(d: Draw) -> str:
    return " ".join(v.plain_word(d) for _ in range(d.rng.randint(6, 20))) + d.rng.choice((". ", "\n"))


def wrapped(d: Draw) -> str:
    """A paragraph broken into lines with an indent, as manuals are."""
    text = " ".join(sentence(d) for _ in range(d.rng.randint(2, 4))).split(" ")
    width, indent = d.rng.randint(7, 13), d.rng.choice(("", "", "   "))
    lines = [" ".join(text[i : i + width]) for i in range(0, len(text), width)]
    return "\n" + "".join(f"{indent}{line}\n" for line in lines) + "\n"


KINDS = ("scene", "sentence", "wrapped", "log", "setting", "bullets", "markup", "soup", "salad")
MAKERS = {
    "scene": lambda d: scene(d) + " ",
    "sentence": lambda d: sentence(d) + " ",
    "wrapped": wrapped,
    "log": log_line,
    "setting": setting,
    "bullets": bullets,
    "markup": markup,
    "soup": soup,
    "salad": salad,
}


class Style:
    """What one document is made of: one to four kinds of filler with their weights."""

    def __init__(self, d: Draw) -> None:
        count = d.rng.choice((1, 1, 2, 3, 4))
        self.kinds = d.rng.choices(KINDS, weights=(5, 6, 4, 2, 1, 1, 3, 1, 2), k=count)
        # Some documents repeat a few sentences over and over, as hand-made tests do.
        self._again = [scene(d) + " " for _ in range(d.rng.randint(1, 3))] if d.chance(0.12) else []

    def piece(self, d: Draw) -> str:
        if self._again:
            return d.rng.choice(self._again)
        return MAKERS[d.rng.choice(self.kinds)](d)
