"""The block program over one weight.bin in plain numpy: the interpreter's twin, without a spec and without coremltools.

It performs the interpreter's operations in the interpreter's order, so that both give the same bits; a test compares
them. What has no fast form here (the other variants) is for the interpreter.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.blob import Image, array_of
from backburner.coreml.interpreter import OPERATIONS, Rounding
from backburner.coreml.manifest import Constant, Manifest
from backburner.errors import ConfigError

F32 = npt.NDArray[np.float32]


class SimulatedPage:
    """One baked page, ready to be asked. `image` may be a mapped file; nothing of it is copied before a call."""

    def __init__(self, manifest: Manifest, image: Image, rounding: Rounding | None = None) -> None:
        """Raises ConfigError for a variant other than `block`."""
        shape = manifest.shape
        if shape.variant != "block":
            raise ConfigError(f"Variant {shape.variant!r} is not simulated: the interpreter runs it.")
        self._manifest = manifest
        self._image = image
        self._rounding = rounding or Rounding()
        self._constants = {(one.role, one.first_head, one.first_row): one for one in manifest.constants}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, F32]:
        """The outputs by name, fp16 values as float32; inputs["q"] as `queries.pack` makes it."""
        (port,) = self._manifest.inputs
        q = inputs[port.name]
        if q.shape != port.shape:
            raise ConfigError(f"Input {port.name} is {q.shape}, the program takes {port.shape}.")
        shape = self._manifest.shape
        x = self._rounding.half(q).reshape(shape.kv_heads, shape.key_channels, shape.columns)
        outs, tops, sums = [], [], []
        for head in range(shape.kv_heads):
            o, mc, parts = self._head(head, x[head])
            outs.append(o)
            tops.append(mc)
            sums += parts
        return {
            name: np.concatenate(parts)[None, :, None]
            for name, parts in (("o", outs), ("mc", tops), ("l", sums))
        }

    def _head(self, head: int, x: F32) -> tuple[F32, F32, list[F32]]:
        """o [head_dim, columns], mc [1, columns], and l [1, columns] of each block."""
        rounding, shape = self._rounding, self._manifest.shape
        starts = range(0, shape.page_tokens, shape.block_tokens)
        scores = []
        for start in starts:
            mask = self._weight("mask", 0, start).reshape(-1, 1)
            scores.append(rounding.product(self._weight("k", head, start), x, mask))  # [block, columns]
        top = scores[0].max(axis=0, keepdims=True)
        for s in scores[1:]:
            top = np.maximum(top, s.max(axis=0, keepdims=True))
        mc = rounding.half(top - np.float32(np.float16(shape.shift)))
        ones = self._weight("ones", 0, 0)
        o, total = np.zeros(0, np.float32), np.zeros(0, np.float32)
        parts: list[F32] = []
        for start, s in zip(starts, scores, strict=True):
            p = OPERATIONS["exp"](rounding, {"x": rounding.half(s - mc)})
            o_b = rounding.product(self._weight("v", head, start), p)
            l_b = rounding.product(ones, p)
            o = rounding.half(o + o_b) if parts else o_b
            total = rounding.half(total + l_b) if parts else l_b
            parts.append(l_b)
        with np.errstate(divide="ignore", invalid="ignore"):
            return rounding.half(o / total), mc, parts

    def _weight(self, role: str, head: int, row: int) -> F32:
        """A constant as the program multiplies with it: [out, in], or flat."""
        one = self._constants[role, head, row]
        array = array_of(self._image, one)
        if one.dtype == "int8":
            scale = self._rounding.half(array_of(self._image, self._constants[f"{role}_scale", head, row]))
            wide = self._rounding.half(array.astype(np.float32) * scale)
        else:
            wide = self._rounding.half(array)
        return _matrix(one, wide)


def _matrix(one: Constant, array: F32) -> F32:
    return array if len(one.shape) == 1 else array.reshape(one.shape[0], one.shape[1])
