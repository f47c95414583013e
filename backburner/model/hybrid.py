"""A Qwen hybrid model as layers that can be run in ranges, with paged attention in the full-attention ones."""

from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

from backburner.attention.engine import Geometry
from backburner.model.paged import PagedAttention


class HybridModel:
    """mlx-lm's model with its attention layers made paged. Weights, names and quantised sub-layers stay as they are."""

    def __init__(self, raw: nn.Module, config: dict[str, Any], fingerprint: bytes) -> None:
        self.raw = raw
        self.config = config
        self.fingerprint = fingerprint
        language = getattr(raw, "language_model", raw)
        self._head = language
        self._body = language.model
        self.layers: list[nn.Module] = list(self._body.layers)
        self.attention_layers = tuple(i for i, layer in enumerate(self.layers) if not layer.is_linear)
        for i in self.attention_layers:
            self.layers[i].self_attn.__class__ = PagedAttention
        self.kept_layers = range(len(self.layers))
        # Noted while all layers are there: `keep_layers` may leave none that could tell.
        attention = self.layers[self.attention_layers[0]].self_attn
        self._attention_shape = (
            attention.num_attention_heads,
            attention.num_key_value_heads,
            attention.head_dim,
            float(attention.scale),
        )
        recurrent = next(layer for layer in self.layers if layer.is_linear).linear_attn
        self.conv_shape = (1, recurrent.conv_kernel_size - 1, recurrent.conv_dim)
        self.recurrent_shape = (1, recurrent.num_v_heads, recurrent.head_v_dim, recurrent.head_k_dim)
        self.dtype: mx.Dtype = self._body.norm.weight.dtype
        self.max_position_embeddings = int(config.get("max_position_embeddings", 32768))

    def keep_layers(self, first: int, stop: int, head: bool) -> None:
        """Drops all but layers [first, stop), and but the final norm and output head if `head`.

        Before the weights are evaluated: what is dropped is then never read. Layers keep their numbers. The embedding
        stays where it is needed: before layer 0, and as the head of a model that has no other.
        """
        for i in range(len(self.layers)):
            if not first <= i < stop:
                self.layers[i] = self._body.layers[i] = None
        tied = "lm_head" not in self._head
        if first > 0 and not (head and tied):
            self._body.embed_tokens = None
        if not head:
            self._body.norm = None
            if not tied:
                self._head.lm_head = None
        self.kept_layers = range(first, stop)

    @property
    def hidden_size(self) -> int:
        """Of a residual's rows."""
        return int(self._head.args.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self._head.args.vocab_size)

    def geometry(self, page_tokens: int) -> Geometry:
        """The shape of every attention layer's pages."""
        q_heads, kv_heads, head_dim, scale = self._attention_shape
        dtype = str(self.dtype).removeprefix("mlx.core.")
        return Geometry(q_heads, kv_heads, head_dim, page_tokens, dtype, scale)

    @staticmethod
    def new_state() -> ArraysCache:
        """The empty state of one recurrent layer. Who keeps this for later keeps no model with it."""
        return ArraysCache(size=2)

    def embed(self, tokens: mx.array) -> mx.array:
        """tokens [T] -> residual [1, T, hidden]."""
        return self._body.embed_tokens(tokens[None]).astype(self.dtype)

    def run_layers(self, residual: mx.array, caches: Sequence[Any], start: int, stop: int) -> mx.array:
        """Layers [start, stop) over a residual [1, T, hidden]; each layer's cache moves on by T.

        `caches`, by layer: mlx-lm's ArraysCache for a recurrent one, `kv.LayerPages` for attention.
        """
        walk = self.walk(residual, caches, start, stop)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                result: mx.array = end.value
                return result

    def walk(
        self, residual: mx.array, caches: Sequence[Any], start: int, stop: int
    ) -> Generator[None, None, mx.array]:
        """`run_layers` that yields whenever a question about held pages is on its way, and returns the residual.

        Whoever drives it may let another query block of the same sequence come to the same layer meanwhile.
        """
        for i in range(start, stop):
            layer = self.layers[i]
            if layer.is_linear:
                residual = layer(residual, None, caches[i])
                continue
            attention = layer.self_attn.begin(layer.input_layernorm(residual), caches[i])
            try:
                if attention.asked:
                    yield
                hidden = residual + attention.finish()
            except BaseException:  # also when the driver gives up
                attention.abandon()
                raise
            residual = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return residual

    def logits(self, residual: mx.array) -> mx.array:
        """Final norm and output head of residual rows [1, T, hidden] -> [T, vocab]."""
        hidden = self._body.norm(residual)
        if "lm_head" in self._head:
            return self._head.lm_head(hidden)[0]
        return self._body.embed_tokens.as_linear(hidden)[0]
