"""Queries into a page program's input, and its outputs into a partial (o, lse). The Swift worker mirrors this file."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backburner.coreml.manifest import Manifest
from backburner.coreml.shape import PageShape
from backburner.errors import BakeRefused

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Answer:
    """A partial, and the largest score: the next step's estimate."""

    o: F32  # [q_heads, T, head_dim]
    lse: F32  # [q_heads, T]
    top: F32  # [q_heads, T]


def pack(shape: PageShape, q: F32, scale: float, estimate: F32 | None = None) -> F16:
    """The program's input. q: [q_heads, T, head_dim], unscaled.

    estimate: what each query's largest score may be, [q_heads, T]; that of the step before is good. The nearer, the
    less the fp16 rounding of the scores matters; any number gives a right answer.

    Column g T + t of a kv head is token t of its g-th query head; the columns after them are zero.
    """
    tokens = q.shape[1]
    if tokens > shape.query_tokens:
        raise BakeRefused(f"{tokens} tokens are more than the {shape.query_tokens} of the page program.")
    used = shape.group * tokens
    x = np.zeros((shape.kv_heads, shape.key_channels, shape.columns), np.float16)
    scaled = (q * np.float32(scale)).reshape(shape.kv_heads, used, shape.head_dim)
    x[:, : shape.head_dim, :used] = scaled.transpose(0, 2, 1)
    if shape.estimate and estimate is not None:
        x[:, shape.head_dim, :used] = -rounded_estimate(estimate).reshape(shape.kv_heads, used)
    if shape.variant == "matmul":
        return x.transpose(0, 2, 1)[None]  # [1, kv_heads, columns, channels]
    return x.reshape(1, -1, 1, shape.columns)


def rounded_estimate(estimate: F32) -> F32:
    """What is really taken off: an integer that fp16 holds exactly; 0 where nothing is known."""
    finite = np.where(np.isfinite(estimate), estimate, np.float32(0))
    return np.clip(np.rint(finite), -2048, 2048).astype(np.float32)


def unpack(
    manifest: Manifest,
    outputs: dict[str, npt.NDArray[np.floating]],
    exponents: npt.NDArray[np.int16],
    tokens: int,
    estimate: F32 | None = None,
) -> Answer:
    """The partial of the first `tokens` tokens. estimate: as it was packed."""
    shape = manifest.shape
    used = shape.group * tokens

    def columns(name: str, channels: int) -> F32:
        """[kv_heads, used, channels]"""
        array = outputs[name].astype(np.float32)
        if shape.variant == "matmul":
            return array.reshape(shape.kv_heads, shape.columns, channels)[:, :used]
        return array.reshape(shape.kv_heads, channels, shape.columns)[:, :, :used].transpose(0, 2, 1)

    powers = exponents[:, None, :].astype(np.int32) + manifest.o_log2
    o = np.ldexp(columns("o", shape.head_dim), powers)
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # a broken engine's zeros are for the self-test to find
        lse = (
            columns("mc", 1)
            + np.log(columns("l", shape.blocks).sum(axis=-1, keepdims=True))
            - np.float32(manifest.sum_log2 * np.log(2.0))
        )
    shift = 0.0 if shape.variant == "softmax" else shape.shift
    top = columns("mc", 1) + np.float32(shift)
    lse, top = lse.reshape(shape.q_heads, tokens), top.reshape(shape.q_heads, tokens)
    if shape.estimate and estimate is not None:
        lse, top = lse + rounded_estimate(estimate), top + rounded_estimate(estimate)
    return Answer(o.reshape(shape.q_heads, tokens, shape.head_dim), lse, top)
