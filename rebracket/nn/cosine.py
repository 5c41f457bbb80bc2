"""Positions that weight a product of features by the cosine of the distance."""

import math
from typing import final

import torch
from torch import Tensor, nn

from rebracket.base.checks import whole
from rebracket.nn.positions import check_positions
from rebracket.ops.precision import at_least_float32
from rebracket.ops.program import Builder, Value


@final
class CosineWeights(nn.Module):
    """Every feature twice, times sine and cosine of its position, so that near tokens weigh more than far ones.

    phi'_i = [phi_i sin(pi i / 2 M), phi_i cos(pi i / 2 M)],   phi'_i . phi'_j = cos(pi (i - j) / 2 M) phi_i . phi_j

    Positions beyond M count as M: no feature that is positive turns negative, however long the text, so a normalizer
    stays safe. Among tokens beyond M the weight is that of phi alone.

    Args:
        dim: features of a head, >= 1.
        horizon: M, the distance in tokens at which the weight has fallen to 0, >= 1.

    Raises:
        ValueError: If a size is below 1.

    Cost: 2 dim multiplications a head; twice the state.

    Source: Qin et al. 2022, "cosFormer", whose M is the length of the text; here it is fixed, since no cache knows how
    long a text will be.

    Example:
        >>> weights = CosineWeights(1, 2)
        >>> y = weights(torch.ones(1, 3, 1, 1), torch.arange(3))[0, :, 0]
        >>> (y[2] @ y.T).round(decimals=4) + 0
        tensor([0.0000, 0.7071, 1.0000])
    """

    def __init__(self, dim: int, horizon: int) -> None:
        super().__init__()
        whole("dim", dim)
        whole("horizon", horizon)
        self.dim, self.horizon, self.dim_out = dim, horizon, 2 * dim

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Weights every head of every token by its position.

        Args:
            x: features [B,T,H,dim], any float dtype.
            positions: of the tokens in their sequences, [B,T], [1,T] or [T].

        Returns:
            [B,T,H,2 dim] in the dtype of x, computed in float32 at least.

        Raises:
            ValueError: If the shapes do not fit.
        """
        if x.ndim != 4 or x.shape[3] != self.dim:
            raise ValueError(f"x must be [B,T,H,dim = {self.dim}], got {list(x.shape)}")
        check_positions(positions, x)
        wide = at_least_float32(x)
        angles = self.angles(positions)[..., None, None]
        return torch.cat([wide * angles.sin().to(wide.dtype), wide * angles.cos().to(wide.dtype)], -1).to(x.dtype)

    def angles(self, positions: Tensor) -> Tensor:
        """From 0 at the start to a right angle at the horizon and beyond, in float64, for positions [...]."""
        return positions.to(torch.float64).clamp(max=self.horizon) * (math.pi / 2 / self.horizon)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        """The operations on each of `heads` vectors, at the position of their row."""
        return build.cosine(x, heads, self.horizon)

    def reset_parameters(self) -> None:
        """Nothing: there is nothing to draw."""
        return

    def extra_repr(self) -> str:
        return f"{self.dim}, horizon={self.horizon}"
