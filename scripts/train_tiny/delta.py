"""The gated delta rule in chunks of tokens, with backward passes written by hand where autograd would be slow.

The products inside chunks run in the model's dtype (bf16 makes them five times as fast here, and a whole
step a seventh faster); the triangular inverse, the decays and the state that is carried on stay in fp32.
"""

import torch
from torch import Tensor

# 32 keeps the triangular inverse small and stable in fp32; 64 would halve the loop but cost more than it saves.
CHUNK = 32


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.to(dtype) @ b.to(dtype)).float()


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


def inside_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """u, w, decayed q, attention inside chunks, and the transition M, N of every chunk.

    q, k [c, kh, C, dk]; v [c, kh, r, C, dv]; g, beta [c, kh, r, C]: c chunks, of all rows.
    """
    G = g.cumsum(-1)
    decay = (G[..., :, None] - G[..., None, :]).tril().exp().tril()  # [c, kh, r, C, C]
    kk = product(k, k.mT, dtype)[:, :, None]
    qk = product(q, k.mT, dtype)[:, :, None]
    T = UnitLowerInverse.apply((kk * decay * beta[..., None]).tril(-1))
    eG = G.exp()
    last = G[..., -1:]
    k, q = k[:, :, None], q[:, :, None]
    u = product(T, v * beta[..., None], dtype)
    w = product(T, k * (beta * eG)[..., None], dtype)
    kd = k * (last - G).exp()[..., None]
    eye = torch.eye(k.shape[-1], dtype=k.dtype)
    M = last.exp()[..., None] * eye - product(kd.mT, w, dtype)  # [c, kh, r, dk, dk]
    N = product(kd.mT, u, dtype)
    return u, w, q * eG[..., None], qk * decay, M, N


def across_chunks(M: Tensor, N: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The state before each chunk, like N [c, kh, r, dk, dv]."""
    c, heads = len(M) // rows, M.shape[1:3]

    def by_chunk(x: Tensor) -> Tensor:  # [rows * c, kh, r, ...] -> [c, rows * vh, ...]
        return x.unflatten(0, (rows, c)).transpose(0, 1).reshape(c, -1, *x.shape[3:])

    S = ChunkScan.apply(by_chunk(M), by_chunk(N), dtype)
    return S.unflatten(1, (rows, *heads)).transpose(0, 1).flatten(0, 1)


def with_states(u: Tensor, w: Tensor, qg: Tensor, attn: Tensor, S: Tensor, dtype: torch.dtype) -> Tensor:
    """What every chunk's tokens read, [c, kh, r, C, dv], with the state S before it."""
    return product(qg, S, dtype) + product(attn, u - product(w, S, dtype), dtype)
