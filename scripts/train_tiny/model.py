"""The Qwen3.5 hybrid in PyTorch, parameter by parameter the one that mlx-lm's `qwen3_5` loads.

Hidden size 192 is a tried width: 256 learned no faster per minute. Twelve layers instead of
eight cost a third of the speed and buy a second inner cycle seam and a third attention layer, which is what copying
in two steps (find the fact, then carry its value) uses. The size stays under the 12 MB that the package may carry.

A layer is two parts, with the scan or the attention between them. Each can be compiled: a third of an eager step is
elementwise work between products (2,048 tokens forward and backward on one core: 1.50 s compiled, 2.09 s eager). Shapes
are static, dynamic ones were as slow as eager.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import delta

PREFIX = "model."


@dataclass(frozen=True)
class Config:
    vocab_size: int = 3072
    hidden_size: int = 192
    intermediate_size: int = 384
    num_hidden_layers: int = 12
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    # A multiple of 32, which MLX's Metal kernel for the delta rule asks for.
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    # A slow base leaves most of the sixteen rotated dimensions nearly still, so that 64k positions look like 4k.
    rope_theta: float = 1e7
    rotary_dim: int = 16


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return functional.linear(x.to(dtype), weight.to(dtype))


def rotary_tables(positions: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, 1, rotary_dim / 2] of positions [B, T], in float64 until the angle is taken."""
    half = config.rotary_dim // 2
    rates = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.reshape(-1, 1, 1).double() * rates
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]: the first rotary_dim turn, halves paired as in mlx's non-traditional rope."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def causal_conv(x: Tensor, weight: Tensor, place: Tensor) -> Tensor:
    """Depthwise over the newest taps: x [tokens, channels], weight [channels, taps], newest last; place [tokens, 1] in
    the row, whose first tokens have nothing before them."""
    taps = weight.shape[1]
    padded = functional.pad(x, (0, 0, taps - 1, 0))
    y = x * weight[:, -1]
    for back in range(1, taps):
        before = padded[taps - 1 - back : taps - 1 - back + len(x)]
        y = y + torch.where(place >= back, before, 0.0) * weight[:, taps - 1 - back]
    return y


def delta_inputs(x, place, norm, qkv_w, z_w, a_w, b_w, conv, A_log, dt_bias, c: Config, dtype):
    """What delta.inside_chunks finds, and the gate z [tokens, values], of x [tokens, hidden]."""
    h = rms_norm(x, norm, c.rms_norm_eps).to(dtype)
    qkv = functional.linear(h, qkv_w.to(dtype)).float()
    z = functional.linear(h, z_w.to(dtype))
    a, b = functional.linear(h, a_w.to(dtype)).float(), functional.linear(h, b_w.to(dtype)).float()
    mixed = functional.silu(causal_conv(qkv, conv, place))
    kh, vh = c.linear_num_key_heads, c.linear_num_value_heads
    kd = kh * c.linear_key_head_dim
    q, k, v = mixed.split((kd, kd, qkv.shape[-1] - 2 * kd), -1)

    def in_chunks(x: Tensor, *heads: int) -> Tensor:  # [tokens, heads * d] -> [c, *heads, C, d]
        return x.reshape(-1, delta.CHUNK, *heads, x.shape[-1] // math.prod(heads)).movedim(1, -2)

    q, k, v = in_chunks(q, kh), in_chunks(k, kh), in_chunks(v, kh, vh // kh)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.linear_key_head_dim**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    g = in_chunks(-A_log.exp() * functional.softplus(a + dt_bias), kh, vh // kh)[..., 0]
    beta = in_chunks(b.sigmoid(), kh, vh // kh)[..., 0]
    return *delta.inside_chunks(q, k, v, g, beta, dtype), z


def delta_output(x, u, w, qg, attn, S, z, norm, out_w, mlp, c: Config, dtype):
    """x after the delta layer and the MLP that follows."""
    o = delta.with_states(u, w, qg, attn, S, dtype).movedim(-2, 1)  # [c, C, kh, r, dv]
    o = rms_norm(o, norm, c.rms_norm_eps).reshape(z.shape) * functional.silu(z.float())
    return swiglu(x + linear(o, out_w, dtype).float(), *mlp, c.rms_norm_eps, dtype)


def attention_inputs(x, norm, q_w, k_w, v_w, q_norm, k_norm, cos, sin, c: Config, dtype):
    """q, k, v [tokens, heads, head_dim] and the gate [tokens, heads * head_dim]."""
    h = rms_norm(x, norm, c.rms_norm_eps).to(dtype)
    q = functional.linear(h, q_w.to(dtype)).reshape(-1, c.num_attention_heads, 2 * c.head_dim)
    q, gate = q.split((c.head_dim, c.head_dim), -1)
    k = functional.linear(h, k_w.to(dtype)).reshape(-1, c.num_key_value_heads, c.head_dim)
    v = functional.linear(h, v_w.to(dtype)).reshape(-1, c.num_key_value_heads, c.head_dim)
    q = rotate(rms_norm(q, q_norm, c.rms_norm_eps), cos, sin).to(dtype)
    k = rotate(rms_norm(k, k_norm, c.rms_norm_eps), cos, sin).to(dtype)
    r = c.num_attention_heads // c.num_key_value_heads
    return q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), gate.reshape(len(x), -1)


def attention(q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    """[tokens, heads, head_dim] each, of `rows` rows -> [tokens, heads * head_dim]."""
    q, k, v = (t.unflatten(0, (rows, -1)).transpose(1, 2) for t in (q, k, v))
    o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2).flatten(0, 1).flatten(1)


def attention_output(x, o, gate, out_w, mlp, c: Config, dtype):
    """x after the attention layer and the MLP that follows."""
    return swiglu(x + linear(o * gate.sigmoid(), out_w, dtype).float(), *mlp, c.rms_norm_eps, dtype)


def swiglu(x, norm, gate_w, up_w, down_w, eps: float, dtype):
    h = rms_norm(x, norm, eps).to(dtype)
    inner = functional.silu(functional.linear(h, gate_w.to(dtype))) * functional.linear(h, up_w.to(dtype))
    return x + linear(inner, down_w, dtype).float()


class Tiny(nn.Module):
    """Parameters are kept flat under their mlx-lm names with dots, so that checkpoints need no mapping."""

    def __init__(self, config: Config, generator: torch.Generator, compiled: bool = False) -> None:
        super().__init__()
        self.config = config
        self.p = nn.ParameterDict()
        self.dtype = torch.float32
        self._generator = generator
        parts = delta_inputs, delta_output, attention_inputs, attention_output
        self.delta_inputs, self.delta_output, self.attention_inputs, self.attention_output = (
            torch.compile(part, dynamic=False) if compiled else part for part in parts
        )
        c = config
        self._add("embed_tokens.weight", self._normal(c.vocab_size, c.hidden_size, std=0.035))
        for i in range(c.num_hidden_layers):
            p = f"layers.{i}."
            self._add(p + "input_layernorm.weight", torch.ones(c.hidden_size))
            self._add(p + "post_attention_layernorm.weight", torch.ones(c.hidden_size))
            if self.is_attention(i):
                self._add_attention(p + "self_attn.")
            else:
                self._add_delta(p + "linear_attn.")
            self._add(p + "mlp.gate_proj.weight", self._matrix(c.intermediate_size, c.hidden_size))
            self._add(p + "mlp.up_proj.weight", self._matrix(c.intermediate_size, c.hidden_size))
            self._add(p + "mlp.down_proj.weight", self._matrix(c.hidden_size, c.intermediate_size, 0.5))
        self._add("norm.weight", torch.ones(c.hidden_size))

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.config.full_attention_interval == 0

    def _add(self, name: str, value: Tensor) -> None:
        self.p[name.replace(".", "/")] = nn.Parameter(value)

    def _normal(self, *shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def _matrix(self, rows: int, columns: int, gain: float = 0.8) -> Tensor:
        return self._normal(rows, columns, std=gain / math.sqrt(columns))

    def _add_attention(self, p: str) -> None:
        c = self.config
        heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self._add(p + "q_proj.weight", self._matrix(2 * heads, c.hidden_size))
        self._add(p + "k_proj.weight", self._matrix(kv, c.hidden_size))
        self._add(p + "v_proj.weight", self._matrix(kv, c.hidden_size))
        self._add(p + "o_proj.weight", self._matrix(c.hidden_size, heads, 0.5))
        # A little above one: sharper attention from the start brings induction sooner.
        self._add(p + "q_norm.weight", torch.full((c.head_dim,), 1.2))
        self._add(p + "k_norm.weight", torch.full((c.head_dim,), 1.2))

    def _add_delta(self, p: str) -> None:
        c = self.config
        heads = c.linear_num_value_heads
        values = heads * c.linear_value_head_dim
        mixed = 2 * c.linear_num_key_heads * c.linear_key_head_dim + values
        self._add(p + "in_proj_qkv.weight", self._matrix(mixed, c.hidden_size))
        self._add(p + "in_proj_z.weight", self._matrix(values, c.hidden_size))
        self._add(p + "in_proj_a.weight", self._matrix(heads, c.hidden_size))
        self._add(p + "in_proj_b.weight", self._matrix(heads, c.hidden_size))
        conv = self._normal(mixed, c.linear_conv_kernel_dim, std=0.3)
        conv[:, -1] += 0.7
        self._add(p + "conv1d.weight", conv)
        self._add(p + "A_log", torch.linspace(1, 4, heads).log())
        step = torch.logspace(-3, -1, heads)
        self._add(p + "dt_bias", torch.log(torch.expm1(step)))  # the inverse of softplus
        self._add(p + "norm.weight", torch.ones(c.linear_value_head_dim))
        self._add(p + "out_proj.weight", self._matrix(c.hidden_size, values, 0.5))

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """tokens, positions [B, T] -> normalised hidden states [B, T, hidden]; T a multiple of delta.CHUNK."""
        c, dtype = self.config, self.dtype
        rows, length = tokens.shape
        if positions is None:
            positions = torch.arange(length).expand_as(tokens)
        cos, sin = rotary_tables(positions, c)
        place = torch.arange(length).repeat(rows)[:, None]

        def w(prefix: str, *names: str) -> list[Tensor]:
            return [self.p[(prefix + name).replace(".", "/")] for name in names]

        # Tokens of all rows in one line: what is compiled sees one shape, whatever the rows' length.
        x = functional.embedding(tokens.reshape(-1), self.p["embed_tokens/weight"])
        for i in range(c.num_hidden_layers):
            p = f"layers.{i}."
            (norm,) = w(p, "input_layernorm.weight")
            mlp = w(
                p, "post_attention_layernorm.weight",
                "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
            )  # fmt: skip
            if self.is_attention(i):
                names = "q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight"
                weights = w(p + "self_attn.", *names)
                q, k, v, gate = self.attention_inputs(x, norm, *weights, cos, sin, c, dtype)
                o = attention(q, k, v, rows)
                x = self.attention_output(x, o, gate, *w(p + "self_attn.", "o_proj.weight"), mlp, c, dtype)
            else:
                names = (
                    "in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight",
                    "conv1d.weight", "A_log", "dt_bias",
                )  # fmt: skip
                weights = w(p + "linear_attn.", *names)
                *parts, M, N, z = self.delta_inputs(x, place, norm, *weights, c, dtype)
                S = delta.across_chunks(M, N, rows, dtype)
                weights = w(p + "linear_attn.", "norm.weight", "out_proj.weight")
                x = self.delta_output(x, *parts, S, z, *weights, mlp, c, dtype)
        return rms_norm(x, self.p["norm/weight"], c.rms_norm_eps).reshape(rows, length, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        # In fp32: a logit of 20 in bf16 is known to 0.06 only, which is the size of what is left to learn at the end.
        return functional.linear(hidden, self.p["embed_tokens/weight"])

    @staticmethod
    def _exported_name(name: str) -> str:
        return PREFIX + name.replace("/", ".")

    def exported(self) -> dict[str, Tensor]:
        """Weights by their mlx-lm names; conv1d in mlx's [channels, taps, 1], or sanitize would add 1 to all norms."""
        out = {self._exported_name(name): value.detach() for name, value in self.p.items()}
        return {n: v[..., None].contiguous() if n.endswith("conv1d.weight") else v for n, v in out.items()}

    def take(self, exported: dict[str, Tensor]) -> None:
        """The weights of an exported folder, by their mlx-lm names."""
        for name, p in self.p.items():
            p.data = exported[self._exported_name(name)].float().reshape(p.shape)
