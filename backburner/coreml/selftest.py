"""Whether a baked page answers as attention does: made-up pages, the float64 reference, errors and their tolerances."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.blob import widen
from backburner.coreml.manifest import Manifest
from backburner.coreml.queries import Answer, pack, unpack
from backburner.coreml.shape import PageShape
from backburner.errors import BakeRefused

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Predict = Callable[[dict[str, npt.NDArray[Any]]], dict[str, Any]]

# The worst column of the emulated program is 0.8 % off on extreme data (docs/baked-pages.md); an engine that sums in
# fp16 is 80 % off, and int8 weights are about 2 %.
O_REL_MAX = 1e-2
# A page's weight in the merge is exp(lse): 2e-2 is 2 %.
LSE_ABS_MAX = 2e-2


@dataclass(frozen=True, slots=True)
class Errors:
    """Against float64 attention over the same fp16 K, V and q."""

    o_abs: float
    o_rel: float  # of the worst column: |difference| / |o|, Euclidean
    lse_abs: float


def uniform16(seed: int, count: int) -> npt.NDArray[np.int64]:
    """`count` groups of four 16-bit integers by splitmix64, [count, 4]: exact on every machine."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    parts = [(z >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return np.stack(parts, axis=1).astype(np.int64)


def bell(seed: int, *shape: int) -> npt.NDArray[np.float16]:
    """Bell-shaped numbers of deviation 1.15: the sum of four uniform integers about 0, over 2^15, rounded to fp16."""
    total = uniform16(seed, int(np.prod(shape))).sum(axis=1) - 131070
    values: npt.NDArray[np.float16] = (total.astype(np.float32) / np.float32(2**15)).astype(np.float16)
    return values.reshape(shape)


def made_up(
    shape: PageShape, seed: int, filled: int, tokens: int
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16], F32]:
    """K, V [kv_heads, filled, head_dim] and q [q_heads, tokens, head_dim] of a seed.

    Even tokens ask for nothing in particular. Odd tokens ask for one row: their query is that row's key, or (3, 7, ...)
    half of it, which in a page of 16,384 and 256 channels weighs about as much as all other rows. That finds engines
    which flush small weights.
    """
    k = bell(seed, shape.kv_heads, filled, shape.head_dim)
    v = bell(seed + 1, shape.kv_heads, filled, shape.head_dim)
    q = bell(seed + 2, shape.q_heads, tokens, shape.head_dim).astype(np.float32)
    for head in range(shape.q_heads):
        for token in range(1, tokens, 2):
            row = (token * 7919 + head * 104729) % filled
            q[head, token] = k[head // shape.group, row].astype(np.float32) * np.float32(
                0.5 if token % 4 == 3 else 1
            )
    return k, v, q


@dataclass(frozen=True, slots=True)
class Truth:
    """Attention in float64, and the largest score."""

    o: F64  # [q_heads, T, head_dim]
    lse: F64  # [q_heads, T]
    top: F64  # [q_heads, T]


def attend64(k: npt.NDArray[Any], v: npt.NDArray[Any], q: F32, scale: float) -> Truth:
    """q is rounded to fp16 after scaling, as it is when packed."""
    kv_heads, _, head_dim = k.shape
    q_heads, tokens, _ = q.shape
    rounded = (q * np.float32(scale)).astype(np.float16).astype(np.float64)
    grouped = rounded.reshape(kv_heads, -1, head_dim)
    o = np.empty(grouped.shape)
    lse, largest = np.empty(grouped.shape[:2]), np.empty(grouped.shape[:2])
    for head in range(kv_heads):  # a head at a time: the scores of all would take much memory
        s = grouped[head] @ widen(k[head]).astype(np.float64).T
        top = s.max(axis=1, keepdims=True)
        np.exp(s - top, out=s)
        total = s.sum(axis=1)
        o[head] = (s @ widen(v[head]).astype(np.float64)) / total[:, None]
        lse[head], largest[head] = top[:, 0] + np.log(total), top[:, 0]
    shape = (q_heads, tokens)
    return Truth(o.reshape(*shape, head_dim), lse.reshape(shape), largest.reshape(shape))


def compare(answer: Answer, truth: Truth) -> Errors:
    """NaN and infinities count as infinite errors."""
    difference = np.where(np.isfinite(answer.o), answer.o, np.inf) - truth.o
    norm = np.linalg.norm(truth.o, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rel = np.where(norm > 0, np.linalg.norm(difference, axis=-1) / norm, np.abs(difference).max(axis=-1))
    lse_error = np.where(np.isfinite(answer.lse), np.abs(answer.lse - truth.lse), np.inf)
    return Errors(float(np.abs(difference).max()), float(rel.max()), float(lse_error.max()))


def measure(
    predict: Predict,
    manifest: Manifest,
    exponents: npt.NDArray[np.int16],
    q: F32,
    scale: float,
    truth: Truth,
) -> Errors:
    """The errors of one call. The estimate is the largest score: in use, that of the step before."""
    estimate = truth.top.astype(np.float32)
    outputs = predict({"q": pack(manifest.shape, q, scale, estimate)})
    return compare(unpack(manifest, outputs, exponents, q.shape[1], estimate), truth)


def require(errors: Errors, o_rel_max: float = O_REL_MAX, lse_abs_max: float = LSE_ABS_MAX) -> None:
    """Raises BakeRefused for a page that is too inexact to stand in for its K and V."""
    # `not <=`, since NaN is an error, too.
    if not errors.o_rel <= o_rel_max or not errors.lse_abs <= lse_abs_max:
        raise BakeRefused(
            f"The self-test failed: o is {errors.o_rel:.2%} off and lse {errors.lse_abs:.1e}, "
            f"where {o_rel_max:.2%} and {lse_abs_max:.1e} are allowed."
        )
