"""What changes in a model without Metal or CUDA: fp32 activations, and weights in the form that is fast there."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import dequantize_model

from backburner.errors import ModelError
from backburner.model import blas_status
from backburner.model.delta import use_chunked_delta
from backburner.model.gating import use_native_gating
from backburner.model.recurrent import use_native_recurrent
from backburner.native import gating, kernels, recurrent

# Of the memory that is free before loading; the rest is for K/V, activations and everybody else.
FP32_WEIGHTS_SHARE = 0.6

_FLOATS = (mx.float16, mx.bfloat16, mx.float32)


def runs_on_cpu() -> bool:
    """True where MLX has neither Metal nor CUDA to run on."""
    return bool(mx.default_device() == mx.cpu)


class PerCallLinear(nn.Linear):
    """A linear layer whose 16-bit weight becomes fp32 for each call.

    At 256 rows 17x (bfloat16) and 22x (float16) faster than MLX's 16-bit matmul on CPU.
    """

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self["weight"].astype(mx.float32).T
        return y + self["bias"] if "bias" in self else y


class PerCallQuantizedLinear(nn.QuantizedLinear):
    """A quantised layer that is dequantised for each call of several rows: 29x faster than the quantised matmul at 256.

    One row stays with the quantised product: it reads the fewest bytes, and with fp32 activations it is the fastest
    (3.8 ms at 1024 x 4096).
    """

    def __call__(self, x: mx.array) -> mx.array:
        if x.size == x.shape[-1]:
            return super().__call__(x)
        w = mx.dequantize(
            self["weight"], self["scales"], self.get("biases"), self.group_size, self.bits, self.mode
        )
        y = x @ w.astype(mx.float32).T
        return y + self["bias"] if "bias" in self else y


def available_bytes() -> int:
    """Memory that this process may still take: what is free, within its control group's limit where there is one."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no such file system, or the limit is "max"
        return available
    return min(available, max(0, limit - used))


def missing_c_parts(engine: str) -> str:
    """What runs slower for want of C, and why; empty when nothing does. `engine`: the attention engine asked for."""
    reasons = [recurrent.why_missing(), gating.why_missing()]
    if engine == "auto":
        reasons.append(kernels.why_missing())
    if not blas_status.forwarded:
        reasons.append(f"matrix products without OpenBLAS, because {blas_status.reason}")
    return "; ".join(why for why in reasons if why)


def fp32_bytes(model: nn.Module) -> int:
    """Bytes of all weights, were they fp32."""
    total = 0
    for _, module in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
        packed = isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding | QuantizedSwitchLinear)
        for name, value in tree_flatten(module.parameters()):
            if packed and name == "weight":
                total += value.size * 32 * 4 // module.bits
            elif not (packed and name in ("scales", "biases")):
                total += value.size * 4
    return total


def prepare_for_cpu(model: nn.Module, memory_bytes: int | None = None) -> tuple[str, ...]:
    """Makes a lazily loaded model run in fp32. Returns what was done, a line each.

    Weights become fp32 when they fit in `FP32_WEIGHTS_SHARE` of memory_bytes (default: what is free now); else the
    large ones keep their form and become fp32 for each call. Reason: MLX's 16-bit matrix product runs at 3 to 5
    GFLOP/s on a core, fp32 through OpenBLAS at 86.

    mx.compile goes off for the process: on CPU it calls a C++ compiler at run time, and gains nothing (a ubatch 1.006
    times as fast, a token 1.000 times, benchmarks/compiled.py). So the tests run what is served.
    """
    mx.disable_compile()
    use_chunked_delta()
    use_native_recurrent(model)
    use_native_gating(model)
    available = memory_bytes if memory_bytes is not None else available_bytes()
    needed = fp32_bytes(model)
    dtypes = {v.dtype for _, v in tree_flatten(model.parameters())}
    if needed <= available * FP32_WEIGHTS_SHARE:
        _cast_floats(model, keep=())  # first, so that affine scales multiply in fp32
        dequantize_model(model)
        _cast_floats(model, keep=())  # the mxfp4 family comes out in bfloat16
        if dtypes <= {mx.float32}:
            return ()
        return (f"weights converted to fp32 for the CPU: {needed / 2**30:.2f} GiB",)
    # mlx's gather_mm takes fp32 only on CPU, so unquantised experts have no smaller form that runs.
    experts = [m for _, m in model.named_modules() if type(m) is SwitchLinear]
    experts_bytes = sum(4 * v.size for m in experts for _, v in tree_flatten(m.parameters()))
    if experts_bytes > available and experts:
        raise ModelError(
            f"the experts take {experts_bytes / 2**30:.0f} GiB in fp32, the only form in which they run on a CPU, and "
            f"{available / 2**30:.0f} GiB are free; use a quantised variant of the model."
        )
    large: list[tuple[str, nn.Module]] = []
    for name, module in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
        if type(module) is nn.QuantizedLinear:
            module.__class__ = PerCallQuantizedLinear
        elif type(module) is nn.Linear and module.weight.dtype != mx.float32:
            module.__class__ = PerCallLinear
            large.append((name, module))
        elif isinstance(module, SwitchLinear):
            _cast_floats(module, keep=())
    _cast_floats(model, keep=tuple(name for name, _ in large))
    return (
        f"weights would take {needed / 2**30:.1f} GiB in fp32 and {available / 2**30:.1f} GiB are free: "
        "they keep their form and are converted for each call (slower)",
    )


def _cast_floats(model: nn.Module, keep: tuple[str, ...]) -> None:
    """Every floating parameter to fp32, but for the weights of the modules named in `keep`."""
    kept = {f"{name}.weight" for name in keep}
    changed: list[tuple[str, Any]] = [
        (path, value.astype(mx.float32))
        for path, value in tree_flatten(model.parameters())
        if value.dtype in _FLOATS and value.dtype != mx.float32 and path not in kept
    ]
    if changed:
        model.update(tree_unflatten(changed))
