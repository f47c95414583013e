"""The full-attention layer with its keys and values in pages, wherever they live."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.qwen3_next import Qwen3NextAttention

from backburner.native.gating import load_gating

# From here on one call of the C part costs less than MLX's sigmoid (14 ns a value on CPU).
GATED_TOKENS_MIN = 2


def to_numpy(x: mx.array) -> npt.NDArray[Any]:
    """An evaluated MLX array as numpy, without a copy on CPU. bfloat16 comes as its uint16 bits."""
    if x.dtype == mx.bfloat16:
        x = x.view(mx.uint16)
    return np.array(x, copy=False)


class PagedAttention(Qwen3NextAttention):
    """mlx-lm's attention layer, but that its cache holds pages and computes attention over them.

    The cache has `offset` (positions stored) and `attend(q, k, v) -> o`: it appends k, v [kv_heads, T, head_dim] and
    returns o [q_heads, T, head_dim] fp32 of q [q_heads, T, head_dim] over everything stored, causal among the new rows.
    """

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        _, T, _ = x.shape
        queries, gate = mx.split(self.q_proj(x).reshape(1, T, self.num_attention_heads, -1), 2, axis=-1)
        gate = gate.reshape(T, self.num_attention_heads, self.head_dim)
        keys = self.k_proj(x).reshape(1, T, self.num_key_value_heads, -1)
        values = self.v_proj(x).reshape(1, T, self.num_key_value_heads, -1)
        queries = self.rope(self.q_norm(queries).transpose(0, 2, 1, 3), offset=cache.offset)
        keys = self.rope(self.k_norm(keys).transpose(0, 2, 1, 3), offset=cache.offset)
        values = values.transpose(0, 2, 1, 3)

        # One point of evaluation: from here the pages' engine works on plain memory, and a worker may be asked too.
        queries, keys, values, gate = (mx.contiguous(a) for a in (queries, keys, values, gate))
        mx.eval(queries, keys, values, gate)
        o = cache.attend(
            to_numpy(queries)[0], to_numpy(keys)[0], to_numpy(values)[0]
        )  # [q_heads, T, head_dim] fp32
        o = o.transpose(1, 0, 2)  # [T, q_heads, head_dim], as the gate
        kernels = load_gating() if T >= GATED_TOKENS_MIN and gate.dtype == mx.float32 else None
        if kernels is not None:
            output = mx.array(kernels.sigmoid_gate(to_numpy(gate), np.ascontiguousarray(o)))
        else:
            output = mx.array(o).astype(x.dtype) * mx.sigmoid(gate)
        return self.o_proj(output.reshape(1, T, -1))
