"""What tests of split reads compare with: the host alone, with everything in its window."""

from functools import lru_cache

from backburner.model.load import TINY
from tests.host import Answer, generate, host

PAGE = 64
WIDE = 100_000  # a window that nothing leaves
SEAM = 4
MODEL = ("tiny", TINY)
TOKENS = 3


@lru_cache(maxsize=64)
def alone(prompt: tuple[int, ...]) -> Answer:
    with host(window_tokens=WIDE) as runner:
        return generate(runner, prompt, TOKENS)
