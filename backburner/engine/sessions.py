"""Conversations that are kept between requests, so that the next one reads only what is new."""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from backburner.engine.sequence import common_prefix


class Kept(Protocol):
    @property
    def tokens(self) -> list[int]: ...


S = TypeVar("S", bound=Kept)

# An agent's conversation, a title or a summary that its client asks for in between, and one more. Each takes the memory
# of its window.
SESSIONS_MAX = 3


class Sessions(Generic[S]):
    """The least recently used one gives way. Whoever takes one out owns it until it is put back."""

    def __init__(self, give_up: Callable[[S], None], limit: int = SESSIONS_MAX) -> None:
        self._give_up = give_up
        self._limit = limit
        self._kept: list[S] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[S]:
        return iter(tuple(self._kept))

    def take(self, prompt: list[int], useful: Callable[[S, int], int]) -> S | None:
        """The conversation that saves the most of this prompt's reading; it is no longer kept.

        useful(session, common): how many tokens it saves if so many leading ones are equal.
        """
        saved = [useful(s, common_prefix(s.tokens, prompt)) for s in self._kept]
        if not saved or max(saved) <= 0:
            return None
        return self._kept.pop(saved.index(max(saved)))

    def put(self, session: S) -> None:
        self._kept.append(session)
        while len(self._kept) > self._limit:
            self.drop_oldest()

    def drop_oldest(self, helps: Callable[[S], bool] = lambda session: True) -> bool:
        """Makes room by the least recently used one that `helps`; False when there is none."""
        oldest = next((i for i, session in enumerate(self._kept) if helps(session)), None)
        if oldest is None:
            return False
        self._give_up(self._kept.pop(oldest))
        return True

    def clear(self) -> None:
        while self.drop_oldest():
            pass
