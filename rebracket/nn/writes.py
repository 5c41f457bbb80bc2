"""Layers that produce a write rule from the tokens: how strongly each head writes what it reads."""

from abc import ABC, abstractmethod
from typing import final

from torch import Tensor, nn

from rebracket.nn.projections import GateProjection
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta


class Write(nn.Module, ABC):
    """A layer from tokens and keys to a write rule, for a stretch of tokens and for one alike.

    Example:
        >>> isinstance(DeltaWrite(8, 2), Write)
        True
    """

    @abstractmethod
    def forward(self, x: Tensor, k: Tensor) -> WriteRule:
        """The rule for x [B,T,d_model], k [B,T,Hq,K], or for one token x [B,d_model], k [B,Hq,K]."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws every weight again."""


@final
class AdditiveWrite(Write):
    """Adds every key-value pair with weight 1; it has no weights.

    Example:
        >>> import torch
        >>> AdditiveWrite()(torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3))
        Additive()
    """

    def forward(self, x: Tensor, k: Tensor) -> WriteRule:
        return Additive()

    def reset_parameters(self) -> None:
        """Nothing to draw."""


@final
class DeltaWrite(Write):
    """The delta rule with a strength per token and head.

    beta = beta_max * sigmoid(W x)

    Args:
        d_model: width of x.
        heads: heads of v, H.
        beta_max: largest strength, in (0, 2].

    Cost: d_model H multiply-adds a token. Source: DeltaNet, Yang et al. 2024; beta_max = 2 for negative eigenvalues,
    Grazzi et al. 2024.

    Example:
        >>> import torch
        >>> rule = DeltaWrite(8, 2)(torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3))
        >>> rule.beta.shape
        torch.Size([1, 6, 2])
    """

    def __init__(self, d_model: int, heads: int, beta_max: float = 1.0) -> None:
        super().__init__()
        self.beta_max = beta_max
        self.beta = GateProjection(d_model, heads)

    def forward(self, x: Tensor, k: Tensor) -> WriteRule:
        return Delta(self.beta_max * self.beta(x).sigmoid())

    def reset_parameters(self) -> None:
        """Draws W again."""
        self.beta.reset_parameters()
