"""Attention over many pages as one partial, without keeping a partial of every page."""

from collections.abc import Callable, Sequence
from typing import Any

from backburner.attention.checks import check_attend
from backburner.attention.engine import F32, AttentionEngine, Geometry, Partial

# Partials that may lie in memory at once. A page's partial takes 6.3 MB for 256 queries of 24 heads of 256, so this is
# 21 pages: a host's default window, 16 pages and those on their way, is one group, and all of it is attended to while
# the worker's answer is awaited. For one query it is 5,400 pages: a decode step stays one call of the engine.
GROUP_BYTES = 128 * 2**20


def attend_folded(
    engine: AttentionEngine,
    geometry: Geometry,
    q: F32,
    pages: Sequence[Any],
    first_visible: Sequence[int] | None = None,
    before: Callable[[], Partial] | None = None,
) -> Partial:
    """engine.fold([before(), *engine.attend(geometry, q, pages, first_visible)]), bit for bit, in bounded memory.

    `before` gives the fold of the pages that lie before these, from whoever holds them. It is called once, when the
    first group of pages has been attended to, so that waiting and computing overlap.
    """
    check_attend(geometry, q, pages, first_visible)
    size = max(1, GROUP_BYTES // max(1, q.nbytes))  # a partial is as large as its query block in fp32

    def group(start: int) -> list[Partial]:
        stop = start + size
        edges = None if first_visible is None else first_visible[start:stop]
        return engine.attend(geometry, q, pages[start:stop], edges)

    partials = group(0)
    if before is not None:
        partials.insert(0, before())
    folded = engine.fold(partials)
    del partials  # before the next group takes as much again
    for start in range(size, len(pages), size):
        folded = engine.fold([folded, *group(start)])
    return folded
