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
        dealt = left + sum(counts[i] for i in open_workers)
        owed = {i: dealt * speed[i] / total - counts[i] for i in open_workers}
        whole = {i: min(int(owed[i]), free[i] - counts[i]) for i in open_workers if owed[i] >= 1}
        if not whole:  # a remainder smaller than any share: one page to whoever is owed most
            whole = {max(open_workers, key=owed.__getitem__): 1}
        for i, count in whole.items():
            count = min(count, left)
            counts[i] += count
            left -= count
    return counts
