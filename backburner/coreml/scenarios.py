"""K, V and queries that are hard for fp16 in different ways, for tests and benchmarks."""

import math

import numpy as np
import numpy.typing as npt

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

NAMES = ("flat", "peaky", "between", "outlier", "extreme")


def make(
    name: str, kv_heads: int, rows: int, head_dim: int, q_heads: int, tokens: int, seed: int = 1
) -> tuple[F16, F16, F32]:
    """K, V [kv_heads, rows, head_dim], and q [q_heads, tokens, head_dim] unscaled.

    flat      gaussian: every row counts a little
    peaky     each query looks for one row, with a score from 14 to 27: more than all others together
    between   the same with 9 to 14: about as much as all others together, whose weights are small numbers
    outlier   one channel of K is 8 times the others, as in trained models; V has heavy tails, up to about 1,800
    extreme   scores from -136 to 136, V up to some thousands
    """
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, kv_heads, rows, head_dim), np.float32)
    q = rng.standard_normal((q_heads, tokens, head_dim), np.float32)
    group = q_heads // kv_heads
    if name in ("peaky", "between"):
        v *= 15
        wanted = rng.uniform(*((14, 27) if name == "peaky" else (9, 14)), (q_heads, tokens))
        for head in range(q_heads):
            for token in range(tokens):
                row = k[head // group, rng.integers(rows)]
                q[head, token] = row * (wanted[head, token] * head_dim**0.5 / float(row @ row))
    elif name == "outlier":
        k[..., 3] *= 8
        tails = np.exp(2 * np.abs(rng.standard_normal(v.shape, np.float32)) ** 0.7)
        v *= tails
        v *= np.float32(min(1.0, 1800 / float(np.abs(v).max())))
    elif name == "extreme":
        v *= np.exp(rng.standard_normal(v.shape, np.float32)) * 60
        q *= 136 / _largest_score(q, k)
    return k.astype(np.float16), v.astype(np.float16), q.astype(np.float16).astype(np.float32)


def _largest_score(q: F32, k: F32) -> float:
    kv_heads, _, head_dim = k.shape
    grouped = q.reshape(kv_heads, -1, head_dim)
    largest = max(float(np.abs(grouped[h] @ k[h].T).max()) for h in range(kv_heads))
    return largest / math.sqrt(head_dim)
