"""Decays inside a chunk: what is left at one place of what was written at another.

    D[i,j] = prod_{j < m <= i} a_m,   G[i] = prod_{m <= i} a_m,   a_m = exp(log_decay_m)

Every weight is exp of a sum over exactly its own interval. All terms have one sign and nothing is subtracted, so a gate
of -1e6 or -inf harms no interval but those that contain it, and weak gates are not rounded away one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F


class Weights(ABC):
    """The decays of chunks [..., C, *]; x and k are rows [..., C, K]."""

    @abstractmethod
    def scores(self, x: Tensor, k: Tensor) -> Tensor:
        """sum over K of x_i D[i,j] k_j, [..., C, C]; only j <= i (j < i after `before`) has a meaning."""

    @abstractmethod
    def since_entry(self, x: Tensor) -> Tensor:
        """G * x: rows as they meet the state on entry."""

    @abstractmethod
    def until_exit(self, k: Tensor) -> Tensor:
        """D[C,.] * k: rows as they reach the state on exit."""

    @abstractmethod
    def over_chunk(self) -> Tensor | None:
        """G[C] as [..., 1 or K, 1], the factor of the state; None is 1."""

    @abstractmethod
    def before(self) -> Weights:
        """The same weights for reads that come before their own token's decay: D[i-1,j] and G[i-1]."""


@final
class NoDecay(Weights):
    """All weights are 1."""

    def scores(self, x: Tensor, k: Tensor) -> Tensor:
        return x @ k.mT

    def since_entry(self, x: Tensor) -> Tensor:
        return x

    def until_exit(self, k: Tensor) -> Tensor:
        return k

    def over_chunk(self) -> None:
        return None

    def before(self) -> Weights:
        return self


@final
class TokenDecay(Weights):
    """One decay for all channels of a token: D is one matrix per head."""

    def __init__(self, between: Tensor, entry: Tensor, leave: Tensor, chunk: Tensor):
        self.between, self.entry, self.leave, self.chunk = between, entry, leave, chunk

    @classmethod
    def of(cls, log_decay: Tensor) -> TokenDecay:
        """From log_decay [..., C, 1]."""
        C = log_decay.shape[-2]
        later = torch.ones(C, C, dtype=torch.bool, device=log_decay.device).tril(-1)
        between = log_decay.expand(*log_decay.shape[:-1], C).masked_fill(~later, 0).cumsum(-2).exp()
        entry = log_decay.cumsum(-2).exp()
        return cls(between, entry, between[..., -1, :, None], entry[..., -1:, :])

    def scores(self, x: Tensor, k: Tensor) -> Tensor:
        return (x @ k.mT) * self.between

    def since_entry(self, x: Tensor) -> Tensor:
        return self.entry * x

    def until_exit(self, k: Tensor) -> Tensor:
        return self.leave * k

    def over_chunk(self) -> Tensor:
        return self.chunk

    def before(self) -> TokenDecay:
        return TokenDecay(shift(self.between), shift(self.entry), self.leave, self.chunk)


def shift(x: Tensor) -> Tensor:
    """Rows one later, a row of ones in front."""
    return torch.cat((torch.ones_like(x[..., :1, :]), x[..., :-1, :]), -2)


@final
class ChannelDecay(Weights):
    """A decay of its own for every channel.

    D would be [C,C,K]. Instead the chunk is halved again and again: between a left and a right half D[i,j] splits at
    their border into two factors, each <= 1, one for x_i and one for k_j, and the block of scores is one matrix
    product. log2(C) levels, each C K numbers.
    """

    def __init__(self, log_decay: Tensor, reads_before: bool = False):
        self.log_decay, self.reads_before = log_decay, reads_before

    def scores(self, x: Tensor, k: Tensor) -> Tensor:
        C = x.shape[-2]
        own = torch.zeros_like(self.log_decay) if self.reads_before else self.log_decay
        # n blocks of h rows, [..., n, h, K]: h is 1 at first, n a power of two.
        padding = (0, 0, 0, (1 << (C - 1).bit_length()) - C)
        x, k, own, total = (F.pad(y, padding).unsqueeze(-2) for y in (x, k, own, self.log_decay))
        # Log-decays of every block: since its beginning, until its end, over all of it.
        scores, since, until = (x * k).sum(-1, keepdim=True), own, torch.zeros_like(total)
        while scores.shape[-3] > 1:
            (_, x1), (k0, _), (scores0, scores1) = pairs(x), pairs(k), pairs(scores)
            (since0, since1), (until0, until1), (total0, total1) = pairs(since), pairs(until), pairs(total)
            across = (x1 * since1.exp()) @ (k0 * until0.exp()).mT
            above, below = (scores0, torch.zeros_like(across)), (across, scores1)
            scores = torch.cat((torch.cat(above, -1), torch.cat(below, -1)), -2)
            since, until = torch.cat((since0, total0 + since1), -2), torch.cat((until0 + total1, until1), -2)
            x, k, total = merged(x), merged(k), total0 + total1
        return scores.squeeze(-3)[..., :C, :C]

    def since_entry(self, x: Tensor) -> Tensor:
        entry = self.log_decay.cumsum(-2).exp()
        return (shift(entry) if self.reads_before else entry) * x

    def until_exit(self, k: Tensor) -> Tensor:
        later = F.pad(self.log_decay[..., 1:, :], (0, 0, 0, 1))
        return later.flip(-2).cumsum(-2).flip(-2).exp() * k

    def over_chunk(self) -> Tensor:
        return self.log_decay.sum(-2, keepdim=True).exp().mT

    def before(self) -> ChannelDecay:
        return ChannelDecay(self.log_decay, reads_before=True)


def pairs(x: Tensor) -> tuple[Tensor, ...]:
    """The left and the right block of every pair of blocks [..., n, h, K], each [..., n/2, h, K]."""
    return x.unflatten(-3, (-1, 2)).unbind(-3)


def merged(x: Tensor) -> Tensor:
    """Pairs of blocks as blocks of twice the rows, [..., n/2, 2h, K]."""
    return x.unflatten(-3, (-1, 2)).flatten(-3, -2)


def weights(log_decay: Tensor | None) -> Weights:
    """The weights of chunks of log-decays [..., C, 1 or K]."""
    if log_decay is None:
        return NoDecay()
    return TokenDecay.of(log_decay) if log_decay.shape[-1] == 1 else ChannelDecay(log_decay)
