"""Makes this worker look slower than it is, for trying out a pair of unequal devices on one machine."""

import math
import threading
import time

from backburner.errors import ConfigError


class Throttle:
    """`with throttle:` around a piece of computing makes it take `factor` times as long.

    Blocks inside others on the same thread count once: the outermost one sleeps, at its end.
    """

    def __init__(self, factor: float) -> None:
        if not 1 <= factor < math.inf:
            raise ConfigError(
                f"--slowdown {factor:g} must be a number from 1 on; 2 makes the worker half as fast."
            )
        self.factor = factor
        self._open = _OpenBlocks()

    def __enter__(self) -> None:
        blocks = self._open
        if blocks.depth == 0:
            blocks.start_s = time.perf_counter()
        blocks.depth += 1

    def __exit__(self, *_: object) -> None:
        blocks = self._open
        blocks.depth -= 1
        if blocks.depth == 0 and self.factor > 1:
            time.sleep((self.factor - 1) * (time.perf_counter() - blocks.start_s))


class _OpenBlocks(threading.local):
    """Of one thread."""

    depth = 0
    start_s = 0.0
