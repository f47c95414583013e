"""The gated delta rule in chunks, with backward passes written by hand where autograd would be slow.

The products inside chunks run in the model's dtype (bf16 makes them five times as fast here, and a whole
step a seventh faster); the triangular inverse, the decays and the state that is carried on stay in fp32.
"""

import torch
from torch import Tensor

# 32 keeps the triangular inverse small and stable in fp32; 64 would halve the loop but cost more than it saves.
CHUNK = 32


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.to(dtype) @ b.to(dtype)).float()


class CausalConv(torch.autograd.Function):
    """Depthwise convolution over the newest taps: x [B, T, channels], weight [channels, taps], newest last."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        T, taps = x.shape[1], weight.shape[1]
        y = x * weight[:, -1]
        for back in range(1, taps):
            y[:, back:].addcmul_(x[:, : T - back], weight[:, taps - 1 - back])
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        T, taps = x.shape[1], weight.shape[1]
        dx, dw = dy * weight[:, -1], torch.empty_like(weight)
        dw[:, -1] = (x * dy).sum((0, 1))
        for back in range(1, taps):
            dx[:, : T - back].addcmul_(dy[:, back:], weight[:, taps - 1 - back])
            dw[:, taps - 1 - back] = (x[:, : T - back] * dy[:, back:]).sum((0, 1))
        return dx, dw


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower triangular L [..., C, C]."""

    @staticmethod
    def forward(ctx, L):
        eye = torch.eye(L.shape[-1], dtype=L.dtype).expand_as(L)
        T = torch.linalg.solve_triangular(L, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(T)
        return T

    @staticmethod
    def backward(ctx, dT):
        (T,) = ctx.saved_tensors
        Tt = T.mT
        return -(Tt @ dT @ Tt).tril_(-1)


class ChunkScan(torch.autograd.Function):
    """States before each chunk: S[c+1] = M[c] S[c] + N[c], S[0] = 0, for M [c, n, k, k] and N [c, n, k, v]."""

    @staticmethod
    def forward(ctx, M, N, dtype):
        S = torch.zeros_like(N)
        for c in range(len(M) - 1):
            # Not baddbmm: on CPU it multiplies one matrix after the other, each time on all threads.
            torch.bmm(M[c], S[c], out=S[c + 1]).add_(N[c])
        ctx.save_for_backward(M, S)
        ctx.dtype = dtype
        return S

    @staticmethod
    def backward(ctx, dS):
        M, S = ctx.saved_tensors
        # dN[c] is the gradient that reaches S[c+1]; the last chunk's state is used by nobody.
        dN = torch.zeros_like(S)
        for c in range(len(M) - 2, -1, -1):
            torch.bmm(M[c + 1].mT, dN[c + 1], out=dN[c]).add_(dS[c + 1])
        return product(dN, S.mT, ctx.dtype), dN, None


def before_inverse(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """L, attention inside chunks and decays from q, k [n, kh, c, C, dk] and g, beta [n, kh, r, c, C]."""
    G = g.cumsum(-1)
    decay = (G[..., :, None] - G[..., None, :]).tril().exp().tril()  # [n, kh, r, c, C, C]
    kk = product(k, k.mT, dtype)[:, :, None]
    qk = product(q, k.mT, dtype)[:, :, None]
    L = (kk * decay * beta[..., None]).tril(-1)
    return L, qk * decay, G


def after_inverse(
    T: Tensor, q: Tensor, k: Tensor, v: Tensor, G: Tensor, beta: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """u, w, decayed q and the transition M, N of every chunk; v [n, kh, r, c, C, dv]."""
    eG = G.exp()
    last = G[..., -1:]
    k, q = k[:, :, None], q[:, :, None]
    u = product(T, v * beta[..., None], dtype)
    w = product(T, k * (beta * eG)[..., None], dtype)
    kd = k * (last - G).exp()[..., None]
    eye = torch.eye(k.shape[-1], dtype=k.dtype)
    M = last.exp()[..., None] * eye - product(kd.mT, w, dtype)  # [n, kh, r, c, dk, dk]
    N = product(kd.mT, u, dtype)
    return u, w, q * eG[..., None], M, N


def after_scan(u: Tensor, w: Tensor, qg: Tensor, attn: Tensor, S: Tensor, dtype: torch.dtype) -> Tensor:
    return product(qg, S, dtype) + product(attn, u - product(w, S, dtype), dtype)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> Tensor:
    """q, k [B, T, kh, dk]; v [B, T, vh, dv]; g, beta [B, T, vh] -> [B, T, vh, dv]; T a multiple of CHUNK."""
    B, T, kh, dk = q.shape
    vh, dv = v.shape[2:]
    r, c = vh // kh, T // CHUNK
    q, k = (x.transpose(1, 2).reshape(B, kh, c, CHUNK, dk) for x in (q, k))
    v = v.transpose(1, 2).reshape(B, kh, r, c, CHUNK, dv)
    g, beta = (x.transpose(1, 2).reshape(B, kh, r, c, CHUNK) for x in (g, beta))
    L, attn, G = before_inverse(q, k, g, beta, dtype)
    u, w, qg, M, N = after_inverse(UnitLowerInverse.apply(L), q, k, v, G, beta, dtype)

    def by_chunk(x: Tensor) -> Tensor:  # [B, kh, r, c, ...] -> [c, B * vh, ...]
        return x.movedim(3, 0).reshape(c, B * vh, *x.shape[4:])

    S = ChunkScan.apply(by_chunk(M), by_chunk(N), dtype)
    S = S.reshape(c, B, kh, r, dk, dv).movedim(0, 3)
    out = after_scan(u, w, qg, attn, S, dtype)  # [B, kh, r, c, C, dv]
    return out.reshape(B, vh, T, dv).transpose(1, 2)
