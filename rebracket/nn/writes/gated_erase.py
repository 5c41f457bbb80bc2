"""Writes that erase through one gate and write through another."""

from dataclasses import replace
from typing import final

from torch import Tensor

from rebracket.base.checks import number
from rebracket.nn.projections import GateProjection
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.gated_erase import GatedErase


@final
class GatedEraseWrite(Write):
    """A gate per key channel for what is erased, and one per value channel for what is written.

    e = erase_max * sigmoid(W_e x),   w = sigmoid(W_w x)

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_dim: width of a head's keys, K.
        value_dim: width of a head's values, V.
        erase_max: the most that is erased, in (0, 2]; above 1 the transition may have negative eigenvalues.

    Raises:
        ValueError: If erase_max is out of its range.

    Cost: d_model H (K + V) multiply-adds a token. Source: "Gated DeltaNet-2: Decoupling Erase and Write in Linear
    Attention" (2026).

    Example:
        >>> import torch
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> GatedEraseWrite(8, 2, 3, 5)(x, k, v, None).rule.erase.shape
        torch.Size([1, 6, 2, 3])
    """

    def __init__(self, d_model: int, heads: int, key_dim: int, value_dim: int, erase_max: float = 1.0) -> None:
        super().__init__()
        self.heads, self.erase_max = heads, number("erase_max", erase_max, 0, 2)
        self.erase, self.write = GateProjection(d_model, heads * key_dim), GateProjection(d_model, heads * value_dim)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        erase, write = (gate(x).sigmoid().unflatten(-1, (self.heads, -1)) for gate in (self.erase, self.write))
        return Written(k, v, GatedErase(self.erase_max * erase, write))

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        erase = build.apply("sigmoid", self.erase.lower(build, x), after=self.erase_max)
        v = build.pair("multiply", given.v, build.apply("sigmoid", self.write.lower(build, x)))
        k = build.repeat(given.k, given.key_heads, given.heads // given.key_heads)
        return replace(given, k=k, v=v, key_heads=given.heads, r=build.pair("multiply", k, erase))

    def reset_parameters(self) -> None:
        """Draws both projections again."""
        self.erase.reset_parameters()
        self.write.reset_parameters()
