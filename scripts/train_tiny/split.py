"""Which wordings and names belong to training and which to evaluation: one rule, a hash of the text.

Evaluation has two sides. `evaluate`: known forms of a question in wordings that training never made of them (another
way to begin, to write, to end). `strange`: forms that training never saw in any wording.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

# One wording in ten, and of a list at least one, is never trained on.
HELD_OUT_SHARE = 10
# From a shorter list nothing is held out: training would lose too much.
SMALLEST_LIST = 6


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


@cache
def is_held_out(name: str) -> bool:
    """For names that are put together from parts, where there is no list to count in."""
    return _hash(name) % HELD_OUT_SHARE == 0


@cache
def _mine(options: tuple[str, ...], held: bool) -> tuple[str, ...]:
    by_hash = sorted(set(options), key=_hash)
    apart = set(by_hash[: max(1, len(by_hash) // HELD_OUT_SHARE)])
    return tuple(o for o in options if (o in apart) == held)


@dataclass(frozen=True, slots=True)
class Draw:
    """A random source that draws only what its side of the split may see."""

    rng: random.Random
    side: Literal["train", "evaluate", "strange"] = "train"
    # Words of the tokenizer's own pieces; empty while the tokenizer is being made.
    pieces: Sequence[str] = ()

    def any(self, options: Sequence[str]) -> str:
        """One of all options: for parts whose combinations, not themselves, are what is new."""
        return self.rng.choice(options)

    def wording(self, options: Sequence[str]) -> str:
        """One of this side's options: trained ones, or in evaluation only held-out ones; of short lists any."""
        return self._of(options, self.side != "train")

    def form(self, options: Sequence[str]) -> str:
        """One of the forms that a wording is made from: held-out ones only on the strange side."""
        return self._of(options, self.side == "strange")

    def _of(self, options: Sequence[str], held: bool) -> str:
        if len(options) < SMALLEST_LIST:
            return self.rng.choice(options)
        return self.rng.choice(_mine(tuple(options), held))

    def may_say(self, wording: str) -> bool:
        """Whether a wording that was made from parts belongs to this side."""
        return self.side == "strange" or is_held_out(wording) == (self.side == "evaluate")

    def chance(self, p: float) -> bool:
        return self.rng.random() < p
