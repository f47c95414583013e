"""What the tests of baked pages share: templates that are built once, and pages patched from them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from backburner.coreml.blob import Image, new_image, patch
from backburner.coreml.interpreter import Interpreter, Rounding
from backburner.coreml.page_program import Built, build
from backburner.coreml.selftest import Errors, Truth, attend64, measure
from backburner.coreml.shape import PageShape
from backburner.coreml.spec import coremltools
from backburner.errors import ConfigError


def _why_not() -> str:
    try:
        coremltools()
    except ConfigError as e:
        return str(e)
    return ""


# For tests that build page programs.
needs_coremltools = pytest.mark.skipif(bool(why := _why_not()), reason=why)

SMALL = PageShape(q_heads=4, kv_heads=2, head_dim=16, page_tokens=64, block_tokens=32, columns=8)


@lru_cache(maxsize=8)
def built(shape: PageShape) -> Built:
    return build(shape)


def small_rows(rows: int, seed: int = 0, shape: PageShape = SMALL) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.random.default_rng(seed).standard_normal((2, shape.kv_heads, rows, shape.head_dim), np.float32)
    return k.astype(np.float16), v.astype(np.float16)


@dataclass(frozen=True, slots=True)
class Baked:
    """A patched page, and what it should answer."""

    template: Built
    image: Image
    exponents: Any
    q: np.ndarray
    scale: float
    truth: Truth

    def errors(self, rounding: Rounding | None = None) -> Errors:
        predict = Interpreter(self.template.spec, self.image, rounding).predict
        return measure(predict, self.template.manifest, self.exponents, self.q, self.scale, self.truth)


def bake(template: Built, k: np.ndarray, v: np.ndarray, q: np.ndarray) -> Baked:
    image = new_image(template.manifest)
    exponents = patch(template.manifest, image, k, v)
    scale = template.manifest.shape.head_dim**-0.5
    return Baked(template, image, exponents, q, scale, attend64(k, v, q, scale))
