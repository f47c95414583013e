"""Gated products in C against float64, at any value, in every instruction set, and wired into the model."""

import os
import subprocess
import sys

import numpy as np
import pytest

from backburner.native.gating import load_gating

pytestmark = pytest.mark.skipif(load_gating() is None, reason="the C part of gated products was not built")

CHECK = """
import numpy as np
from backburner.native.gating import load_gating
kernels = load_gating()
if kernels is None:
    print("unavailable")
    raise SystemExit
rng = np.random.default_rng(0)
for count in (1, 3, 4, 15, 16, 17, 1000, 4096):
    x = (rng.standard_normal(count) * 4).astype(np.float32)
    y = rng.standard_normal(count).astype(np.float32)
    sigmoid = 1 / (1 + np.exp(-x.astype(np.float64)))
    for got, expected in ((kernels.swiglu(x, y), x * sigmoid * y), (kernels.sigmoid_gate(x, y), sigmoid * y)):
        assert np.allclose(got, expected, rtol=5e-7, atol=1e-12), count
extreme = np.array([0, -0.0, 1e-30, -1e-30, 80, -80, 88, -88, 1e4, -1e4, 3e38, -3e38, np.inf, -np.inf], np.float32)
one = np.ones_like(extreme)
gate = kernels.sigmoid_gate(extreme, one)
assert np.all((gate >= 0) & (gate <= 1)) and gate[-2] == 1 and gate[-1] == 0, gate
silu = kernels.swiglu(extreme[:-1], one[:-1])
assert silu[4] == 80 and abs(silu[5]) < 1e-30 and silu[10] == extreme[10] and silu[11] == 0, silu
assert np.isnan(kernels.swiglu(np.array([np.nan], np.float32), one[:1])).all()
x = rng.standard_normal(1000).astype(np.float32)
whole = kernels.swiglu(x, x)
for start, stop in ((0, 1), (5, 9), (3, 1000), (990, 1000)):  # a value's bits do not depend on its place
    part = np.ascontiguousarray(x[start:stop])
    assert np.array_equal(kernels.swiglu(part, part), whole[start:stop])
print("ok")
"""


@pytest.mark.parametrize("isa", ["", "generic", "avx2", "avx512"])
def test_gated_products_equal_float64_in_every_instruction_set(isa: str) -> None:
    environment = os.environ | ({"BACKBURNER_ISA": isa} if isa else {})
    run = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=True
    )
    if run.stdout.strip() == "unavailable":
        pytest.skip(f"this CPU does not have {isa}")
    assert run.stdout.strip() == "ok"


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_the_feed_forward_layer_equals_mlx_lms(tokens: int) -> None:
    import mlx.core as mx
    from mlx_lm.models.qwen3_next import Qwen3NextMLP

    from backburner.model.gating import NativeMLP

    layer = Qwen3NextMLP(64, 192)
    x = mx.random.normal((1, tokens, 64))
    expected = np.array(layer(x))
    layer.__class__ = NativeMLP
    assert np.allclose(np.array(layer(x)), expected, rtol=1e-5, atol=1e-6)
