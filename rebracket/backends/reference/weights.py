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
        x, k, own, log_decay = (blocks(padded(y)) for y in (x, k, self.own(), self.log_decay))
        scores = (x * k).sum(-1, keepdim=True)
        prefix, suffix, total = own, torch.zeros_like(log_decay), log_decay
        while scores.shape[-3] > 1:
            right, left = halves(x, 1) * halves(prefix, 1).exp(), halves(k, 0) * halves(suffix, 0).exp()
            scores = assemble(scores, right @ left.mT)
            prefix = merge(halves(prefix, 0), halves(prefix, 1) + halves(total, 0))
            suffix = merge(halves(suffix, 0) + halves(total, 1), halves(suffix, 1))
            total = halves(total, 0) + halves(total, 1)
            x, k = (merge(halves(y, 0), halves(y, 1)) for y in (x, k))
        return scores.squeeze(-3)[..., :C, :C]

    def own(self) -> Tensor:
        """What a row's own decay adds to its reads."""
        return torch.zeros_like(self.log_decay) if self.reads_before else self.log_decay

    def since_entry(self, x: Tensor) -> Tensor:
        entry = self.log_decay.cumsum(-2).exp()
        return (shift(entry) if self.reads_before else entry) * x

    def until_exit(self, k: Tensor) -> Tensor:
        later = self.log_decay.roll(-1, -2).index_fill(-2, torch.tensor([k.shape[-2] - 1], device=k.device), 0)
        return later.flip(-2).cumsum(-2).flip(-2).exp() * k

    def over_chunk(self) -> Tensor:
        return self.log_decay.sum(-2, keepdim=True).exp().mT

    def before(self) -> ChannelDecay:
        return ChannelDecay(self.log_decay, reads_before=True)


def padded(x: Tensor) -> Tensor:
    """Rows of zeros up to a power of two."""
    C = x.shape[-2]
    return torch.nn.functional.pad(x, (0, 0, 0, (1 << (C - 1).bit_length()) - C))


def blocks(x: Tensor) -> Tensor:
    """Rows [..., C, K] as C blocks of one row, [..., C, 1, K]."""
    return x.unsqueeze(-2)


def halves(x: Tensor, side: int) -> Tensor:
    """The left (0) or right (1) block of every pair of blocks [..., n, h, K]."""
    return x.unflatten(-3, (-1, 2)).select(-3, side)


def merge(left: Tensor, right: Tensor) -> Tensor:
    """Pairs of blocks as blocks of twice the rows."""
    return torch.cat((left, right), -2)


def assemble(scores: Tensor, cross: Tensor) -> Tensor:
    """Blocks [..., n, h, h] on the diagonal and what the right halves read of the left: [..., n/2, 2h, 2h]."""
    left, right = halves(scores, 0), halves(scores, 1)
    return torch.cat((torch.cat((left, torch.zeros_like(left)), -1), torch.cat((cross, right), -1)), -2)


def weights(log_decay: Tensor | None) -> Weights:
    """The weights of chunks of log-decays [..., C, 1 or K]."""
    if log_decay is None:
        return NoDecay()
    return TokenDecay.of(log_decay) if log_decay.shape[-1] == 1 else ChannelDecay(log_decay)
