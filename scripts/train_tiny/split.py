"""Which wordings and names belong to training and which to evaluation: one rule, a hash of the text."""

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
    side: Literal["train", "evaluate"] = "train"
    # Words of the tokenizer's own pieces; empty while the tokenizer is being made.
    pieces: Sequence[str] = ()

    def any(self, options: Sequence[str]) -> str:
        """One of all options: for parts whose combinations, not themselves, are what is new."""
        return self.rng.choice(options)

    def wording(self, options: Sequence[str]) -> str:
        """One of the options of this side: trained ones, or in evaluation only held-out ones; of short lists any."""
        if len(options) < SMALLEST_LIST:
            return self.rng.choice(options)
        return self.rng.choice(_mine(tuple(options), self.side == "evaluate"))

    def chance(self, p: float) -> bool:
        return self.rng.random() < p
