"""Which wordings and names belong to training and which to evaluation: one rule, a hash of the text."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# One wording in ten is never trained on.
HELD_OUT_SHARE = 10
# From a shorter list nothing is held out: training would lose too much.
SMALLEST_LIST = 6


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True, slots=True)
class Draw:
    """A random source that draws only what its side of the split may see."""

    rng: random.Random
    side: Literal["train", "evaluate"] = "train"
    # Words of the tokenizer's own pieces; empty while the tokenizer is being made.
    pieces: Sequence[str] = ()

    def any(self, options: Sequence[str]) -> str:
        """One of all options: for parts whose combinations, not themselves, are what is new."""
        return self.rng.choice(options)

    def wording(self, options: Sequence[str]) -> str:
        """One of the options of this side: trained ones, or, in evaluation, only held-out ones where there are some."""
        if len(options) < SMALLEST_LIST:
            return self.rng.choice(options)
        held = self.side == "evaluate"
        mine = [o for o in options if is_held_out(o) == held]
        return self.rng.choice(mine or options)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p
