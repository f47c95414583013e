"""The recurrent layer on CPU: MLX runs its projections, one call of the C part everything between them."""

import ctypes
import functools
import operator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.qwen3_5 import GatedDeltaNet
from mlx_lm.models.qwen3_next import Qwen3NextGatedDeltaNet

from backburner.native.recurrent import HEAD_DIM_MULTIPLE, CLayer, RecurrentKernel, load_recurrent

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the C part knows of one layer, and the parameters that it was made of."""

    kernel: RecurrentKernel
    layer: Any  # pointer to CLayer
    made_of: tuple[mx.array, ...]
    memory: tuple[np.ndarray[Any, Any], ...]  # what the CLayer points into


@functools.cache
def _no_update() -> tuple[mx.array, mx.array]:
    """An update of no rows, and where it goes."""
    update = mx.zeros((0, 1, 1, 1)), mx.array([0])
    mx.eval(update)  # evaluated arrays may be used on any thread
    return update


def own(x: mx.array) -> mx.array:
    """x [a, b, c, d] in memory that, once evaluated, nobody but the result sees: to be written to.

    By an update of no rows. MLX gives it x's own memory if nobody else holds x, a view of it or a graph with it, and a
    copy otherwise: so a state that someone kept is never changed, and one that nobody kept is not copied (0.5 MB).
    The caller has to drop its own reference to x before it evaluates the result.
    """
    return mx.slice_update(x, *_no_update(), (0,))


@functools.cache
def _own_copies() -> bool:
    """Whether this MLX copies what someone holds, as `own` relies on."""
    kept = mx.zeros((1, 1, 1, 1))
    mx.eval(kept)
    owned = own(kept)
    mx.eval(owned)
    return _address(owned) != _address(kept)


def _address(x: Any) -> int:
    """Where an evaluated array's values are. numpy's `ctypes.data` takes 5 us when it is not in the cache, this 1."""
    return ctypes.addressof(ctypes.c_char.from_buffer(x))


def _in_order(x: Any) -> mx.array:
    """An evaluated x with its values in the order of its axes: itself, or a copy."""
    if memoryview(x).c_contiguous:
        return x
    x = mx.contiguous(x)
    mx.eval(x)
    return x


class _NativeLayer:
    """What both of mlx-lm's classes get in front of their own `__call__`."""

    _made_plan: _Plan | None = None

    def __call__(self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        layer: Any = self
        _, T, _ = inputs.shape
        plan = layer._plan() if mask is None and _is_plain(inputs, cache) else None
        projected = layer._project(inputs) if plan is not None else ()
        if plan is None or any(x.dtype != mx.float32 for x in projected):
            return super().__call__(inputs, mask, cache)  # type: ignore[misc]

        v_heads, dv, dk = layer.num_v_heads, layer.head_v_dim, layer.head_k_dim
        conv, state = cache[0], cache[1]
        # The cache gets the lazy result at once: if what follows fails, its state is still the old one.
        cache[1] = mx.zeros((1, v_heads, dv, dk)) if state is None else own(state)
        del state
        mx.eval(*projected, cache[1], *(() if conv is None else (conv,)))
        cache[1] = _in_order(cache[1])
        if conv is not None:
            conv = _in_order(conv)
        conv_out = np.empty((1, layer.conv_kernel_size - 1, layer.conv_dim), np.float32)
        plan.kernel.run(
            plan.layer,
            T,
            *layer._addresses(projected),
            None if conv is None else _address(conv),
            _address(conv_out),
            _address(cache[1]),
        )
        cache[0] = mx.array(conv_out)
        cache.advance(T)
        return layer.out_proj(layer._output(projected))

    def _plan(self) -> _Plan | None:
        """The plan, made anew when a parameter was replaced; None if the C part cannot run this layer."""
        layer: Any = self
        plan = self._made_plan
        # As items: a module's parameters are the slowest kind of attribute, and this runs for each layer of a token.
        parameters = (layer["conv1d"]["weight"], layer["A_log"], layer["dt_bias"], layer["norm"]["weight"])
        if plan is not None and all(map(operator.is_, plan.made_of, parameters)):
            return plan
        kernel = load_recurrent()
        if (
            kernel is None
            or layer.head_k_dim % HEAD_DIM_MULTIPLE
            or layer.head_v_dim % HEAD_DIM_MULTIPLE
            or layer.conv_kernel_size > kernel.max_taps
            or "bias" in layer.conv1d
            or getattr(layer, "sharding_group", None) is not None
            or any(p.dtype != mx.float32 for p in parameters)
        ):
            return None
        mx.eval(parameters)
        conv, a_log, dt_bias, norm = (np.array(p) for p in parameters)
        conv = np.ascontiguousarray(conv[:, :, 0].T)  # [channels, taps, 1] -> [taps, channels]
        memory = (conv, a_log, dt_bias, norm)
        c_layer = CLayer(
            k_heads=layer.num_k_heads,
            v_heads=layer.num_v_heads,
            dk=layer.head_k_dim,
            dv=layer.head_v_dim,
            taps=layer.conv_kernel_size,
            norm_eps=layer.norm.eps,
            conv=conv.ctypes.data,
            a_log=a_log.ctypes.data,
            dt_bias=dt_bias.ctypes.data,
            norm=norm.ctypes.data,
            **layer._places(),
        )
        self._made_plan = _Plan(kernel, ctypes.pointer(c_layer), parameters, memory)
        return self._made_plan


def _is_plain(inputs: mx.array, cache: Any) -> bool:
    """One unpadded fp32 sequence with a cache: what the C part runs."""
    B, T, _ = inputs.shape
    return bool(
        B == 1
        and T > 0
        and inputs.dtype == mx.float32
        and cache is not None
        and cache.lengths is None
        and cache.left_padding is None
        and all(x is None or x.dtype == mx.float32 for x in (cache[0], cache[1]))
    )


class NativeGatedDeltaNet(_NativeLayer, GatedDeltaNet):
    """qwen3_5's layer: q, k, v of all heads in one projection, and one each for z, b and a."""

    def _project(self, inputs: mx.array) -> tuple[mx.array, ...]:
        return (
            self.in_proj_qkv(inputs),  # [1, T, channels]
            self.in_proj_z(inputs),  # [1, T, v_heads * dv]
            self.in_proj_b(inputs),  # [1, T, v_heads]
            self.in_proj_a(inputs),
        )

    def _addresses(self, projected: tuple[mx.array, ...]) -> tuple[int, ...]:
        return tuple(map(_address, projected))

    def _output(self, projected: tuple[mx.array, ...]) -> mx.array:
        return projected[1]

    def _places(self) -> dict[str, int]:
        group = self.num_v_heads // self.num_k_heads
        return {
            "qkv_row": self.conv_dim,
            "k_offset": self.key_dim,
            "v_offset": 2 * self.key_dim,
            "qk_head": self.head_k_dim,
            "v_group": group * self.head_v_dim,
            "z_row": self.value_dim,
            "z_group": group * self.head_v_dim,
            "ba_row": self.num_v_heads,
            "ba_group": group,
        }


class NativeQwen3NextGatedDeltaNet(_NativeLayer, Qwen3NextGatedDeltaNet):
    """qwen3_next's layer: for each key head its q, k, v and z lie together, and its b and a."""

    def _project(self, inputs: mx.array) -> tuple[mx.array, ...]:
        return self.in_proj_qkvz(inputs), self.in_proj_ba(inputs)

    def _addresses(self, projected: tuple[mx.array, ...]) -> tuple[int, ...]:
        qkvz, ba = map(_address, projected)
        group = self.num_v_heads // self.num_k_heads
        return qkvz, qkvz + FLOAT_BYTES * self._z_offset(), ba, ba + FLOAT_BYTES * group

    def _output(self, projected: tuple[mx.array, ...]) -> mx.array:
        qkvz = projected[0]
        _, T, _ = qkvz.shape
        return qkvz.reshape(1, T, self.num_k_heads, -1)[..., self._z_offset() :].reshape(1, T, -1)

    def _z_offset(self) -> int:
        return int(2 * self.head_k_dim + self.num_v_heads // self.num_k_heads * self.head_v_dim)

    def _places(self) -> dict[str, int]:
        group = self.num_v_heads // self.num_k_heads
        head = 2 * (self.head_k_dim + group * self.head_v_dim)
        return {
            "qkv_row": self.num_k_heads * head,
            "k_offset": self.head_k_dim,
            "v_offset": 2 * self.head_k_dim,
            "qk_head": head,
            "v_group": head,
            "z_row": self.num_k_heads * head,
            "z_group": head,
            "ba_row": 2 * self.num_v_heads,
            "ba_group": 2 * group,
        }


_NATIVE: dict[type, type] = {
    GatedDeltaNet: NativeGatedDeltaNet,
    Qwen3NextGatedDeltaNet: NativeQwen3NextGatedDeltaNet,
}


def use_native_recurrent(model: nn.Module) -> None:
    """Makes a model's recurrent layers run in C, where there is a C part; for models that run on the CPU."""
    if load_recurrent() is None or not _own_copies():
        return
    for module in model.modules():
        if type(module) in _NATIVE:
            module.__class__ = _NATIVE[type(module)]
