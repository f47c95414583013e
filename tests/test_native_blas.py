"""MLX's products through the BLAS forwarder, each in a process of its own, against float64."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backburner.native.library import ISA_VARIABLE

ROOT = Path(__file__).resolve().parent.parent

needs_forwarder = pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("backburner.native._blas") is None,
    reason="the BLAS forwarder is for Linux and has to be built",
)

PRODUCTS = """
import numpy as np
from backburner.native.blas import forward_blas
if {forward}:
    status = forward_blas()
    assert status.forwarded, status.reason
    assert forward_blas().forwarded  # a second call changes nothing
import mlx.core as mx

rng = np.random.default_rng(0)
worst = 0.0
def check(a, b, product):
    global worst
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    bound = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)) + 1e-30
    got = np.array(product)
    assert got.shape == expected.shape
    worst = max(worst, float(np.max(np.abs(got - expected) / bound)))

shapes = [(1, 1, 1), (1, 64, 64), (1, 1000, 77), (1, 33, 259), (2, 100, 9), (3, 257, 31), (4, 16, 8),
          (5, 15, 12), (7, 129, 65), (13, 300, 41), (16, 512, 100), (17, 96, 33),
          (64, 128, 80), (65, 70, 90), (100, 70, 1), (5, 33, 1), (25, 40, 48), (90, 1100, 130), (530, 33, 600)]
for m, k, n in shapes:
    a = rng.normal(size=(m, k)).astype(np.float32)
    b = rng.normal(size=(k, n)).astype(np.float32)
    A, B = mx.array(a), mx.array(b)
    At, Bt = mx.array(np.ascontiguousarray(a.T)), mx.array(np.ascontiguousarray(b.T))
    check(a, b, A @ B)
    check(a, b, A @ Bt.T)
    check(a, b, At.T @ B)
    check(a, b, At.T @ Bt.T)
    c = rng.normal(size=(m, n)).astype(np.float32)
    alpha, beta = 0.5, -2.0
    expected = alpha * (a.astype(np.float64) @ b) + beta * c
    for Bx in (B, Bt.T):
        got = np.array(mx.addmm(mx.array(c), A, Bx, alpha=alpha, beta=beta))
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-4), (m, k, n)
for m in (1, 3, 40):  # batched, also with strided rows and a broadcast side
    a = rng.normal(size=(3, 2, m, 48)).astype(np.float32)
    b = rng.normal(size=(3, 2, 48, 21)).astype(np.float32)
    check(a, b, mx.array(a) @ mx.array(b))
    check(a, b[:1], mx.array(a) @ mx.array(b[:1]))
    wide = mx.array(rng.normal(size=(3, 2, m, 100)).astype(np.float32))
    cut = wide[..., 10:58]
    check(np.array(cut), b, cut @ mx.array(b))
assert worst < 1e-6, worst
print("ok", worst)
"""


def run_python(code: str, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@needs_forwarder
@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_forwarded_products_equal_float64(isa: str) -> None:
    assert run_python(PRODUCTS.format(forward=True), **{ISA_VARIABLE: isa}).startswith("ok")


def test_products_equal_float64_without_forwarding_too() -> None:
    assert run_python(PRODUCTS.format(forward=False)).startswith("ok")


@needs_forwarder
def test_forwarding_is_refused_once_mlx_is_imported() -> None:
    code = (
        "import mlx.core as mx\nfrom backburner.native.blas import forward_blas\nstatus = forward_blas()\n"
        "assert not status.forwarded\nprint(status.reason)\nmx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))"
    )
    assert "imported before" in run_python(code)


@needs_forwarder
@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_bits_of_a_row_do_not_depend_on_how_many_are_asked_for_together(isa: str) -> None:
    code = """
import numpy as np
from backburner.native.blas import forward_blas
from backburner.native.kernels import load_kernels
assert forward_blas().forwarded
few = 64 if load_kernels() is not None and load_kernels().isa == "avx512" else 8
import mlx.core as mx
rng = np.random.default_rng(1)
w = mx.array(rng.normal(size=(37, 203)).astype(np.float32))
x = rng.normal(size=(64, 203)).astype(np.float32)
for rows in range(2, few + 1):
    together = np.array(mx.array(x[:rows]) @ w.T)
    for row in range(rows):
        assert np.array_equal(together[row], np.array(mx.array(x[row : row + 1]) @ w.T)[0]), (rows, row)
print("ok")
"""
    assert run_python(code, **{ISA_VARIABLE: isa}).strip() == "ok"


@needs_forwarder
def test_openblas_runs_one_thread_unless_the_user_says_otherwise() -> None:
    code = (
        "import ctypes, glob, os, numpy as np\nfrom backburner.native.blas import forward_blas\n"
        "assert forward_blas().forwarded\n"
        "found = glob.glob(os.path.dirname(np.__file__) + '/../numpy.libs/libscipy_openblas64_*')\n"
        "print(ctypes.CDLL(found[0]).scipy_openblas_get_num_threads64_())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout.strip() == "1"


def test_nothing_is_done_off_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    from backburner.native.blas import forward_blas

    monkeypatch.setattr(sys, "platform", "darwin")
    status = forward_blas()
    assert not status.forwarded
    assert "Accelerate" in status.reason


def test_a_numpy_without_bundled_openblas_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import numpy as np

    from backburner.native.blas import _numpy_openblas

    monkeypatch.setattr(np, "__file__", str(tmp_path / "numpy" / "__init__.py"))
    assert "does not bundle OpenBLAS" in str(_numpy_openblas())
