"""The fast twin of the interpreter gives its bits, with every rounding and with int8 weights."""

from dataclasses import replace

import numpy as np
import pytest

from backburner.coreml.blob import new_image, patch
from backburner.coreml.interpreter import Interpreter, Rounding
from backburner.coreml.manifest import PageShape
from backburner.coreml.queries import pack
from backburner.coreml.simulate import SimulatedPage
from backburner.errors import ConfigError
from tests.coreml_support import SMALL, built, needs_coremltools, small_rows

pytestmark = needs_coremltools

WIDE = PageShape(q_heads=6, kv_heads=2, head_dim=64, page_tokens=512, block_tokens=128, columns=32)


@pytest.mark.parametrize(
    "rounding",
    [
        Rounding(),
        Rounding(flush_denormals=True, mac_limit=2.0**15, exp_error=2.0**-11),
        Rounding(sequential=True),
    ],
    ids=["usual", "pessimistic", "sequential"],
)
@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        WIDE,
        replace(WIDE, kv_heads=1, q_heads=3),
        replace(WIDE, weights="int8", estimate=False),
        replace(WIDE, block_tokens=512),
    ],
    ids=["small", "wide", "one head", "int8", "one block"],
)
@pytest.mark.parametrize("filled", [1.0, 0.7])
def test_simulation_gives_the_interpreters_bits(shape: PageShape, rounding: Rounding, filled: float) -> None:
    template = built(shape)
    image = new_image(template.manifest)
    patch(template.manifest, image, *small_rows(int(shape.page_tokens * filled), 3, shape))
    tokens = min(3, shape.query_tokens)
    q = np.random.default_rng(5).standard_normal((shape.q_heads, tokens, shape.head_dim), np.float32) * 4
    inputs = {"q": pack(shape, q, shape.head_dim**-0.5, np.full((shape.q_heads, tokens), 7, np.float32))}
    expected = Interpreter(template.spec, image, rounding).predict(inputs)
    found = SimulatedPage(template.manifest, image, rounding).predict(inputs)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array, equal_nan=True), name


def test_other_variants_are_refused() -> None:
    template = built(replace(SMALL, variant="softmax", block_tokens=SMALL.page_tokens))
    with pytest.raises(ConfigError, match="interpreter"):
        SimulatedPage(template.manifest, new_image(template.manifest))


def test_a_query_of_another_shape_is_refused() -> None:
    template = built(SMALL)
    with pytest.raises(ConfigError, match="Input q"):
        SimulatedPage(template.manifest, new_image(template.manifest)).predict(
            {"q": np.zeros((1, 2), np.float16)}
        )
