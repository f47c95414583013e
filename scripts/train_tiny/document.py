"""A text of a wanted length with facts somewhere in it."""

from . import filler
from .skills.facts import Fact
from .split import Draw

# Measured over all kinds of filler with the trained tokenizer; only the length's rough size depends on it.
CHARS_PER_TOKEN = 3.0
OPENINGS = (
    "",
    "",
    "",
    "Notes. ",
    "Notes:\n",
    "Document:\n",
    "Context: ",
    "Here are my notes. ",
    "Report\n\n",
    "Read this text.\n\n",
    "Use this text to answer.\n",
    "The following is known.\n",
)


def write(d: Draw, facts: list[Fact], tokens: int) -> str:
    """About `tokens` tokens of one style of filler, with each fact's statement at a random place."""
    style = filler.Style(d)
    length = int(tokens * CHARS_PER_TOKEN)
    pieces: list[str] = []
    have = sum(len(f.statement) + 1 for f in facts)
    while have < length:
        pieces.append(style.piece(d))
        have += len(pieces[-1])
    for fact in facts:
        ending = d.rng.choice((" ", " ", " ", "\n", "\n\n"))
        # A sentence after text without a final space or line end gets one, as any writer would give it.
        pieces.insert(d.rng.randint(0, len(pieces)), fact.statement + ending)
    return d.rng.choice(OPENINGS) + "".join(pieces).strip()
