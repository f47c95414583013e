"""Which worker gets which of a sequence's old pages. Pure arithmetic."""

from collections.abc import Sequence


def deal(pages: int, free: Sequence[int], speed: Sequence[float]) -> list[int]:
    """How many of the next `pages` go to each worker, in order of the workers: one run of pages each.

    In proportion to speed, so that their partials are ready at the same time, but never more than is free. Runs, not
    turns: partials are folded in page order, and each change of holder costs a hop. The sum is less than `pages` when
    all are full.
    """
    counts = [0] * len(free)
    left = pages
    while left:
        open_workers = [i for i in range(len(free)) if counts[i] < free[i]]
        if not open_workers:
            break
        total = sum(speed[i] for i in open_workers)
        wanted = [left * speed[i] / total for i in open_workers]
        whole = [min(int(w), free[i] - counts[i]) for w, i in zip(wanted, open_workers, strict=True)]
        if not any(whole):  # a remainder smaller than any share: one page to whoever is owed most
            best = max(range(len(open_workers)), key=lambda j: wanted[j])
            whole[best] = 1
        for i, count in zip(open_workers, whole, strict=True):
            counts[i] += count
            left -= count
    return counts
