"""How sequences are cut into chunks: all chunks of all sequences in one axis, ordered by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Chunks of C tokens in the order a scan needs them: the first chunk of every sequence, then the second, ...

    Sequences stand in falling order of length, so that those still running at a step are the first rows of its state.

    Args:
        tokens: [M,C], the flat token index of every place in every chunk; -1 is padding.
        places: [B*T], the flat place of every token; -1 for a token that belongs to no sequence.
        alive: sequences that are still running, for every step.
        order: [N], the sequences by falling length.
    """

    tokens: Tensor
    places: Tensor
    alive: tuple[int, ...]
    order: Tensor

    def split(self, x: Tensor) -> Tensor:
        """x [B,T,H,D] as chunks [M,H,C,D], zeros in the padding."""
        H, D = x.shape[2:]
        rows = Gather.apply(
            x.reshape(-1, D), by_head(self.tokens, H), by_head_flat(self.places, self.tokens.shape[1], H)
        )
        return rows.view(self.tokens.shape[0], H, self.tokens.shape[1], D)

    def join(self, x: Tensor, B: int, T: int) -> Tensor:
        """Chunks [M,H,C,D] as x [B,T,H,D], zeros for tokens of no sequence."""
        H, C, D = x.shape[1:]
        rows = Gather.apply(x.reshape(-1, D), by_head_flat(self.places, C, H), by_head(self.tokens, H))
        return rows.view(B, T, H, D)


def by_head(tokens: Tensor, H: int) -> Tensor:
    """Rows of x [B*T*H, D] in the order [M,H,C]."""
    heads = torch.arange(H, device=tokens.device)[:, None]
    index = tokens[:, None, :]
    return torch.where(index < 0, -1, index * H + heads).reshape(-1)


def by_head_flat(places: Tensor, C: int, H: int) -> Tensor:
    """Rows of chunks [M*H*C, D] in the order [B*T,H]."""
    heads = torch.arange(H, device=places.device)
    place = places[:, None]
    return torch.where(place < 0, -1, (place // C * H + heads) * C + place % C).reshape(-1)


@final
class Gather(torch.autograd.Function):
    """Rows of x by index, zeros for -1. Every row is wanted at most once, so the gradient is a gather as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return take(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        return Gather.apply(grads[0], inverse, index), None, None


def take(x: Tensor, index: Tensor) -> Tensor:
    padded = index < 0
    if x.shape[0] == 0:
        return x.new_zeros(index.shape[0], x.shape[1])
    return x.index_select(0, index.clamp(min=0)).masked_fill_(padded[:, None], 0)


def layout(offsets: Tensor, total: int, C: int) -> Layout:
    """The chunks, none longer than needed, of sequences between offsets [N+1] in a flat axis of `total` tokens."""
    lengths = offsets.diff()
    C = max(min(C, int(lengths.max())), 1) if lengths.numel() else C
    order = lengths.argsort(descending=True, stable=True)
    chunks = (lengths[order] + C - 1) // C
    steps = int(chunks[0]) if chunks.numel() else 0
    running = chunks[None, :] > torch.arange(steps, device=offsets.device)[:, None]
    step, row = running.nonzero(as_tuple=True)
    first = offsets[order[row]] + step * C
    tokens = first[:, None] + torch.arange(C, device=offsets.device)
    tokens = tokens.masked_fill(tokens >= offsets[order[row] + 1][:, None], -1)
    return Layout(tokens, inverse(tokens, total), tuple(running.sum(1).tolist()), order)


def inverse(tokens: Tensor, total: int) -> Tensor:
    """The place of every token, -1 where it has none."""
    places = torch.full((total,), -1, device=tokens.device)
    flat = tokens.reshape(-1)
    used = flat >= 0
    places[flat[used]] = used.nonzero().squeeze(-1)
    return places
