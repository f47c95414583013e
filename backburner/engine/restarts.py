"""How often a failed engine is made again: a few times within a while, with growing pauses. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from backburner.config import ENGINE_RESTART_PAUSES_S, ENGINE_RESTART_WINDOW_S


@dataclass(slots=True)
class Restarts:
    """A fault that always comes back must not load a model for ever; one a day is no reason to give up."""

    pauses_s: Sequence[float] = ENGINE_RESTART_PAUSES_S  # before the first, the second, ... of a window
    window_s: float = ENGINE_RESTART_WINDOW_S
    total: int = 0
    _recent: deque[float] = field(default_factory=deque)  # when they were granted

    def next(self, now_s: float) -> float | None:
        """How long to wait before the next restart, which counts as made; None: there is none."""
        while self._recent and self._recent[0] <= now_s - self.window_s:
            self._recent.popleft()
        if len(self._recent) >= len(self.pauses_s):
            return None
        self._recent.append(now_s)
        self.total += 1
        return self.pauses_s[len(self._recent) - 1]
