"""Additive writes whose keys are what the decay takes away."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.additive import Additive


@final
class ComplementWrite(Write):
    """Adds values under keys 1 - a: a channel takes in as much as it forgets. No keys are projected.

    S_t = Diag(a_t) S_{t-1} + (1 - a_t) v_t^T

    Needs a decay per key channel. It has no weights.

    Cost: H K exponentials a token. Source: Qin et al. 2024, "HGRN2: Gated Linear RNNs with State Expansion".

    Example:
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 0, 3), torch.ones(1, 6, 2, 5)
        >>> ComplementWrite()(x, k, v, torch.full((1, 6, 2, 3), 0.25).log()).k[0, 0, 0]
        tensor([0.7500, 0.7500, 0.7500])
    """

    @property
    def key_entries(self) -> int:
        return 0

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        if log_decay is None or log_decay.ndim != v.ndim:
            seen = None if log_decay is None else list(log_decay.shape)
            raise ValueError(f"log_decay must be per key channel, [B,T,H,K], to make keys of it, got {seen}")
        return Written(-torch.expm1(log_decay).to(v.dtype), v, Additive())

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        assert isinstance(log_decay, Value)
        return replace(given, k=build.apply("expm1", log_decay, after=-1.0), key_heads=given.heads)

    def reset_parameters(self) -> None:
        """Nothing to draw."""
