"""Which pages stay on the host and which go to the worker. Pure arithmetic: no clock, no memory, no link."""

from dataclasses import dataclass

from backburner.config import SEQUENCE_PAGES_MAX


@dataclass(frozen=True, slots=True)
class Residency:
    """The policy: the newest `window_tokens` positions stay; whole older pages go, oldest first."""

    page_tokens: int
    window_tokens: int
    max_pages: int = (
        SEQUENCE_PAGES_MAX  # that a worker binds to one sequence; what is beyond stays on the host
    )

    def held_target(self, tokens: int) -> int:
        """How many leading pages should be held at `tokens` positions: those wholly before the window."""
        return min(max(0, (tokens - self.window_tokens) // self.page_tokens), self.max_pages)

    def copy_target(self, tokens: int, expected_tokens: int) -> int:
        """How many leading pages should have been copied by now: full ones that will be wanted, ahead of need.

        `expected_tokens` is what the sequence will reach for certain (the end of the prompt during a read). One page
        further, so that during decode a page has crossed before the window needs its room.
        """
        full = tokens // self.page_tokens
        return min(full, self.held_target(max(tokens, expected_tokens) + self.page_tokens))

    def droppable(self, tokens: int, acknowledged: int) -> int:
        """How many leading pages the host may drop now: never one that the worker has not acknowledged."""
        return min(self.held_target(tokens), acknowledged)

    def overdue(self, tokens: int, acknowledged: int) -> int:
        """How many pages past the window still wait for their acknowledgement."""
        return max(0, self.held_target(tokens) - acknowledged)
