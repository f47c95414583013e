"""Which attention engine serves: by name, or the best one that this machine can run."""

import importlib.metadata
import sys

from backburner.attention.engine import AttentionEngine
from backburner.attention.numpy_engine import NumpyEngine
from backburner.errors import ConfigError
from backburner.native.blas import forward_blas
from backburner.native.kernels import load_kernels, why_missing

ENGINE_NAMES = ("auto", "native", "numpy", "mlx")

# Beside the best ordinary engine, for workers: what is baked is old.
BAKED_NAMES = ("baked", "baked-sim")


def make_engine(name: str) -> AttentionEngine:
    """The engine called `name`; "auto" is mlx on a GPU, else the C kernels, else numpy."""
    if name == "auto":
        return make_engine(_best())
    if name == "native":
        return _native()
    if name == "numpy":
        return NumpyEngine()
    if name == "mlx":
        return _mlx()
    if name in BAKED_NAMES:
        from backburner.attention.baked import BakedEngine

        return BakedEngine(make_engine("auto"), name)
    known = ", ".join(ENGINE_NAMES + BAKED_NAMES)
    raise ConfigError(f"unknown attention engine {name!r}; choose one of {known}")


def _best() -> str:
    if _gpu_runs_mlx():
        return "mlx"
    return "native" if load_kernels() is not None else "numpy"


def _gpu_runs_mlx() -> bool:
    """Asks MLX only on macOS: importing it takes a second and memory that a CPU worker can do without."""
    if sys.platform == "darwin":
        try:
            import mlx.core as mx
        except ImportError:
            return False
        return bool(mx.metal.is_available())
    return any(
        (dist.name or "").lower().replace("_", "-").startswith("mlx-cuda")
        for dist in importlib.metadata.distributions()
    )


def _native() -> AttentionEngine:
    kernels = load_kernels()
    if kernels is None:
        raise ConfigError(
            f"the native attention engine is not available ({why_missing()}); "
            "install a C compiler and reinstall backburner, or choose another engine"
        )
    from backburner.attention.native_engine import NativeEngine

    return NativeEngine(kernels)


def _mlx() -> AttentionEngine:
    # A worker imports no model, which would do it: without it, its products are slower and have other bits than the
    # host's.
    forward_blas()
    try:
        from backburner.attention.mlx_engine import MlxEngine
    except ImportError as error:
        raise ConfigError(f"the mlx attention engine needs the mlx package ({error})") from error
    return MlxEngine()
