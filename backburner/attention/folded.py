"""Attention over many pages as one partial, without keeping a partial of every page."""

from collections.abc import Callable, Sequence
from typing import Any

from backburner.attention.checks import check_attend
from backburner.attention.engine import F32, AttentionEngine, Geometry, Partial

# Partials that may lie in memory at once. A page's partial takes 6.3 MB for 256 queries of 24 heads of 256, so this is
# 21 pages: a host's default window, 16 pages and those on their way, is one group, and all of it is attended to while
# the worker's answer is awaited. For one query it is 5,400 pages: a decode step stays one call of the engine.
GROUP_BYTES = 128 * 2**20


class AttentionAhead:
    """Attention over pages whose fold with those before them comes later: the first group is computed at once."""

    def __init__(
        self,
        engine: AttentionEngine,
        geometry: Geometry,
        q: F32,
        pages: Sequence[Any],
        first_visible: Sequence[int] | None = None,
    ) -> None:
        check_attend(geometry, q, pages, first_visible)
        self._engine = engine
        self._geometry = geometry
        self._q = q
        self._pages = pages
        self._first_visible = first_visible
        # A partial is as large as its query block in fp32.
        self._size = max(1, GROUP_BYTES // max(1, q.nbytes))
        self._partials = self._group(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the query: [q_heads, T, head_dim]."""
        return self._q.shape

    def _group(self, start: int) -> list[Partial]:
        stop = start + self._size
        edges = None if self._first_visible is None else self._first_visible[start:stop]
        return self._engine.attend(self._geometry, self._q, self._pages[start:stop], edges)

    def fold(self, before: Partial | None) -> Partial:
        """engine.fold([before, *engine.attend(geometry, q, pages, first_visible)]), bit for bit. Once only."""
        partials, self._partials = self._partials, []
        folded = self._engine.fold(partials if before is None else [before, *partials])
        del partials  # before the next group takes as much again
        for start in range(self._size, len(self._pages), self._size):
            folded = self._engine.fold([folded, *self._group(start)])
        return folded


def attend_folded(
    engine: AttentionEngine,
    geometry: Geometry,
    q: F32,
    pages: Sequence[Any],
    first_visible: Sequence[int] | None = None,
    before: Callable[[], Partial] | None = None,
) -> Partial:
    """The fold of `before()` and the partials of all pages, in bounded memory.

    `before` gives the fold of the pages that lie before these, from whoever holds them. It is called once, when the
    first group of pages has been attended to, so that waiting and computing overlap.
    """
    ahead = AttentionAhead(engine, geometry, q, pages, first_visible)
    return ahead.fold(before() if before is not None else None)
