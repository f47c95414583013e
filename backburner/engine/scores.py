"""Log probabilities of a prompt's tokens, a few rows of logits at a time."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from backburner.engine.sampling import Score, scores

# A row of logits takes 1 MB with a vocabulary of 248,000 tokens, and four of them are there at once.
SLICE_ROWS = 32


class PromptScores:
    """Of the tokens that each step's rows predict, kept until they are taken."""

    def __init__(self, prompt: Sequence[int], top: int, logits: Callable[[mx.array], mx.array]) -> None:
        """logits: of residual rows [1, T, hidden] behind the last layer."""
        self._prompt = prompt
        self._top = top
        self._logits = logits
        self._scores: list[Score] = []

    def add(self, start: int, residual: mx.array) -> None:
        """residual [1, T, hidden] behind the last layer, of prompt positions from `start` on."""
        following = self._prompt[start + 1 : start + 1 + residual.shape[1]]
        for i in range(0, len(following), SLICE_ROWS):
            tokens = list(following[i : i + SLICE_ROWS])
            self._scores += scores(self._logits(residual[:, i : i + len(tokens)]), tokens, self._top)

    def take(self) -> list[Score]:
        taken, self._scores = self._scores, []
        return taken
