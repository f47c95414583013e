"""Writes tests/vectors/attention/: pages and queries in, partials of each page and of all out, computed in float64.

Small enough to look at. pytest holds the engines to them, and XCTest the Swift worker's.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.vector_files import VECTORS, as_json, write_folder

FOLDER = VECTORS / "attention"
F64 = npt.NDArray[np.float64]

# Name, dtype of the pages, query heads, K/V heads, head_dim, tokens, rows of each page, how far scores spread.
CASES = [
    ("one_token", "float32", 4, 2, 8, 1, (6, 6, 6), 1.0),
    ("five_tokens_last_page_short", "float16", 6, 2, 8, 5, (6, 6, 1), 1.0),
    ("bfloat16_one_kv_head", "bfloat16", 3, 1, 16, 2, (8, 8), 1.0),
    ("as_many_kv_heads", "float32", 2, 2, 8, 3, (4,), 1.0),
    # Scores of +-100: each weight but one is nearly or quite 0.
    ("far_apart", "float32", 4, 2, 8, 2, (6, 6, 6), 40.0),
    # Scores beyond the largest float count as the largest. One page: beside 3e38 the number of rows is lost in lse.
    ("overflow", "float32", 2, 1, 8, 1, (5,), 1e40),
]
TOLERANCES = {"o": 2e-6, "lse": 2e-6}
_FLOAT_MAX = float(np.finfo(np.float32).max)


def stored(x: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def widened(x: npt.NDArray[Any], dtype: str) -> F64:
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def attend(q: F64, k: F64, v: F64, scale: float) -> tuple[F64, F64]:
    """o [q_heads, T, head_dim] and lse [q_heads, T] over k and v [kv_heads, rows, head_dim]."""
    group = len(q) // len(k)
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    s = np.clip(scale * q @ k.transpose(0, 2, 1), -_FLOAT_MAX, _FLOAT_MAX)
    m = s.max(axis=-1, keepdims=True)
    w = np.exp(s - m)
    total = w.sum(axis=-1, keepdims=True)
    return (w / total) @ v, (m + np.log(total))[..., 0]


def partial(o: F64, lse: F64) -> dict[str, Any]:
    return {"o": as_json(o.astype(np.float32)), "lse": as_json(lse.astype(np.float32))}


def attention_case(
    number: int, name: str, dtype: str, q_heads: int, kv_heads: int, dim: int, tokens: int,
    filled: tuple[int, ...], spread: float,
) -> dict[str, Any]:  # fmt: skip
    noise = np.random.default_rng(number)

    def made_up(*shape: int) -> npt.NDArray[np.float32]:
        return noise.uniform(-1, 1, shape).astype(np.float32)

    scale = 0.375
    size = np.float32(spread**0.5)
    q = made_up(q_heads, tokens, dim) * size
    if (
        spread**2 > _FLOAT_MAX
    ):  # one product for a score: of two infinite ones the sum would hang on their order
        q[..., 1:] = 0
    pages = []
    for rows in filled:
        k, v = made_up(kv_heads, rows, dim) * size, made_up(kv_heads, rows, dim)
        pages.append((stored(k, dtype), stored(v, dtype)))
    wide = [tuple(widened(x, dtype) for x in page) for page in pages]
    q64 = q.astype(np.float64)
    whole = tuple(np.concatenate(part, axis=1) for part in zip(*wide, strict=True))
    return {
        "name": name,
        "dtype": dtype,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": dim,
        "page_tokens": max(filled),
        "scale": scale,
        "q": as_json(q),
        "pages": [
            {"k": as_json(k), "v": as_json(v), **partial(*attend(q64, *w, scale))}
            for (k, v), w in zip(pages, wide, strict=True)
        ],
        "all": partial(*attend(q64, *whole, scale)),
    }


def merge_cases() -> list[dict[str, Any]]:
    """Partials of one head, one token and two numbers. Where a side is empty, the bits of the other."""
    empty = float("-inf")
    cases = [
        ("equal weights", ([1.0, -2.0], 0.5), ([3.0, 2.0], 0.5)),
        ("one far below", ([1.0, -2.0], 50.0), ([3.0, 2.0], -60.0)),
        ("one slightly below", ([0.1, 0.2], 1.25), ([0.3, -0.7], 0.75)),
        ("a empty", ([0.0, 0.0], empty), ([-0.0, 7.5], 3.0)),
        ("b empty", ([-0.0, 7.5], 3.0), ([0.0, 0.0], empty)),
        ("both empty", ([0.0, -0.0], empty), ([-0.0, 0.0], empty)),
        ("the largest and the lowest score", ([1.0, 2.0], _FLOAT_MAX), ([3.0, 4.0], -_FLOAT_MAX)),
    ]
    out = []
    for name, (oa, la), (ob, lb) in cases:
        a, b = (np.array([[o]], np.float32) for o in (oa, ob))
        if lb == empty or la == empty:
            o, lse = (a, la) if lb == empty else (b, lb)
        else:
            m = max(la, lb)
            wa, wb = np.exp(la - m), np.exp(lb - m)
            o = (wa * a.astype(np.float64) + wb * b.astype(np.float64)) / (wa + wb)
            lse = m + np.log(wa + wb)
        out.append(
            {
                "name": name,
                "exact": empty in (la, lb),
                "a": partial(a, np.array([[la]])),
                "b": partial(b, np.array([[lb]])),
                "merged": partial(o, np.array([[lse]])),
            }
        )
    return out


def files() -> dict[str, bytes]:
    index = {
        # Of |found - wanted| / max(1, |wanted|), for float32 arithmetic in any order of summation.
        "tolerances": TOLERANCES,
        "attention": [attention_case(number, *case) for number, case in enumerate(CASES)],
        "merge": merge_cases(),
    }
    return {"index.json": (json.dumps(index, indent=1) + "\n").encode()}


if __name__ == "__main__":
    write_folder(FOLDER, files())
