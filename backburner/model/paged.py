"""The full-attention layer with its keys and values in pages, wherever they live."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.qwen3_next import Qwen3NextAttention

from backburner.model.arrays import to_numpy
from backburner.native.gating import load_gating

# From here on one call of the C part costs less than MLX's sigmoid (14 ns a value on CPU).
GATED_TOKENS_MIN = 2


class PagedAttention(Qwen3NextAttention):
    """mlx-lm's attention layer, but that its cache holds pages and computes attention over them.

    The cache has `offset` (positions stored) and `ask(q, k, v)`: it appends k, v [kv_heads, T, head_dim], and its
    `result()` is o [q_heads, T, head_dim] fp32 of q [q_heads, T, head_dim] over everything stored, causal among the
    new rows.
    """

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        return self.begin(x, cache).finish()

    def begin(self, x: mx.array, cache: Any) -> "BegunAttention":
        """Up to the point where the rows are stored and a worker has been asked."""
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
        pending = cache.ask(to_numpy(queries)[0], to_numpy(keys)[0], to_numpy(values)[0])
        return BegunAttention(self, pending, gate, x.dtype)


class BegunAttention:
    """One call of an attention layer, waiting for its result over the pages."""

    def __init__(self, layer: PagedAttention, pending: Any, gate: mx.array, dtype: mx.Dtype) -> None:
        self._layer = layer
        self._pending = pending  # kv.pages.PendingAttention
        self._gate = gate  # [T, q_heads, head_dim]
        self._dtype = dtype

    @property
    def asked(self) -> bool:
        """Whether somebody else computes a part of it now."""
        return bool(self._pending.asked)

    def finish(self) -> mx.array:
        """The layer's output [1, T, hidden]."""
        o = self._pending.result().transpose(1, 0, 2)  # [T, q_heads, head_dim], as the gate
        gate, T = self._gate, self._gate.shape[0]
        kernels = load_gating() if T >= GATED_TOKENS_MIN and gate.dtype == mx.float32 else None
        if kernels is not None:
            output = mx.array(kernels.sigmoid_gate(to_numpy(gate), np.ascontiguousarray(o)))
        else:
            output = mx.array(o).astype(self._dtype) * mx.sigmoid(gate)
        return self._layer.o_proj(output.reshape(1, T, -1))

    def abandon(self) -> None:
        """Nobody will finish it. Never raises."""
        self._pending.abandon()
