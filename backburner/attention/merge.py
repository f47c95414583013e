"""Merges partials by their log-sum-exp, as a strict left fold in page order.

The order is a contract: a worker folds the prefix of pages that it holds, the host goes on from there, and
the bits equal those of one fold over all pages. This file is the definition; the Swift worker mirrors it.

`merge` is this rule for each head and query, in float32. Each step is rounded by itself: no fused multiply-add, and a
division, not a product with the reciprocal. exp and log are the platform's, whose last bits may differ.

    if b.lse is -inf: a
    else if a.lse is -inf: b
    else:
        m = max(a.lse, b.lse)
        w_a = exp(a.lse - m)
        w_b = exp(b.lse - m)
        o = (a.o * w_a + b.o * w_b) / (w_a + w_b)      for each of the head_dim numbers
        lse = m + log(w_a + w_b)
"""

from collections.abc import Sequence

import numpy as np

from backburner.attention.engine import Partial


def merge(a: Partial, b: Partial) -> Partial:
    """The partial over the keys of both. If one is empty (lse = -inf), the other comes back bit for bit."""
    m = np.maximum(a.lse, b.lse)  # [q_heads, T]
    # exp(-inf - -inf) is NaN; with a finite shift both weights become exp(-inf) = 0.
    shift = np.where(m == -np.inf, np.float32(0), m)
    with np.errstate(over="ignore"):  # -FLT_MAX - FLT_MAX is -inf, whose exp is the right 0
        w_a = np.exp(a.lse - shift)
        w_b = np.exp(b.lse - shift)
    total = w_a + w_b
    one_is_empty = (a.lse == -np.inf) | (b.lse == -np.inf)
    any_empty = bool(one_is_empty.any())
    if any_empty:
        total = np.where(total == 0, np.float32(1), total)
    # In place: three passes over o rather than four and one temporary fewer (6 MB each at 256 queries).
    o = a.o * w_a[..., None]  # [q_heads, T, head_dim]
    o += b.o * w_b[..., None]
    o /= total[..., None]
    lse = shift + np.log(total)
    if any_empty:
        # Rows with an empty side are copied: 0 * x + y would turn -0.0 into 0.0.
        keep_a = (b.lse == -np.inf)[..., None]
        keep_b = ((a.lse == -np.inf) & (b.lse != -np.inf))[..., None]
        o = np.where(keep_a, a.o, np.where(keep_b, b.o, o))
        lse = np.where(one_is_empty, m, lse)
    return Partial(o=o, lse=lse)


def merge_all(partials: Sequence[Partial]) -> Partial:
    """The left fold ((p0 + p1) + p2) + ... of one or more partials."""
    if not partials:
        raise ValueError("nothing to merge: an empty key set is a Partial with lse = -inf, not an empty list")
    folded = partials[0]
    for partial in partials[1:]:
        folded = merge(folded, partial)
    return folded
