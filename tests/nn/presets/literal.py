"""Layers written out token by token and head by head, with nothing of the package in them."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.nn.tiny import SIZE

H, HQ, K, V = SIZE.heads, SIZE.key_heads, SIZE.key_dim, SIZE.value_dim


def heads_of(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [T,H,K] and v [T,H,V] of the projected tokens [T,...]; each key head stands for H // HQ heads."""
    q, k, v = qkv[:, : HQ * K], qkv[:, HQ * K : 2 * HQ * K], qkv[:, 2 * HQ * K :]
    q, k = (torch.stack([x.reshape(-1, HQ, K)[:, h // (H // HQ)] for h in range(H)], 1) for x in (q, k))
    return q, k, v.reshape(-1, H, V)


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """silu of sum_j w[:, j] x[t - (W - 1) + j], x [T,D], weight [D,W]."""
    width, rows = weight.shape[1], []
    for t in range(x.shape[0]):
        row = torch.zeros_like(x[0])
        for j in range(width):
            if t - (width - 1) + j >= 0:
                row = row + weight[:, j] * x[t - (width - 1) + j]
        rows.append(row / (1 + torch.exp(-row)))
    return torch.stack(rows)


def recurrence(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None = None) -> Tensor:
    """The outputs [T,H,V]; decay [T,H,K] as factors, beta [T,H] for the delta rule."""
    outs = torch.zeros(v.shape, dtype=v.dtype)
    for h in range(H):
        S = torch.zeros(q.shape[2], V, dtype=v.dtype)
        for t in range(v.shape[0]):
            S = decay[t, h][:, None] * S
            new = v[t, h] if beta is None else beta[t, h] * (v[t, h] - k[t, h] @ S)
            S = S + torch.outer(k[t, h], new)
            outs[t, h] = q[t, h] @ S / q.shape[2] ** 0.5
    return outs


def normed(out: Tensor, weight: Tensor) -> Tensor:
    return weight * out / (out.square().mean(-1, keepdim=True) + SIZE.norm_eps).sqrt()


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def kept(x: Tensor) -> Tensor:
    """No decay."""
    return torch.ones(x.shape[0], H, K, dtype=x.dtype)


def per_channel(x: Tensor) -> Tensor:
    """[T,H] as [T,H,K]."""
    return x[:, :, None].expand(-1, -1, K)


def flat(x: Tensor, weight: Tensor) -> Tensor:
    """Heads side by side, through the output projection."""
    return F.linear(x.flatten(-2), weight)
