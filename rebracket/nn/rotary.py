"""Rotary positions."""

from typing import final

import torch
from torch import Tensor, nn

from rebracket.base.checks import number
from rebracket.nn.positions import check_positions
from rebracket.ops.precision import at_least_float32
from rebracket.ops.program import Builder, Value


@final
class Rotary(nn.Module):
    """Turns pairs of entries by angles that grow with the position, so that q . k depends on the distance alone.

    y_i = x_i cos(p f_i) - x_(i + K/2) sin(p f_i),   y_(i + K/2) = x_(i + K/2) cos(p f_i) + x_i sin(p f_i)

    f_i = base^(-2 i / K),  i = 0..K/2-1

    The angles are computed in float64 at every call: nothing is kept that a dtype could round or a longer sequence
    outgrow.

    Args:
        dim: K, even, >= 2.
        base: sets the longest wavelength, about 2 pi base tokens; > 1.

    Raises:
        ValueError: If dim or base is out of range.

    Cost: 2 K multiplications a head, K / 2 sines and cosines a token.

    Source: Su et al. 2021 (RoFormer), in the layout of GPT-NeoX.

    Example:
        >>> turned = Rotary(4)(torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 2, 1, 4), torch.tensor([0, 1]))
        >>> turned[0, :, 0]
        tensor([[1.0000, 1.0000, 0.0000, 0.0000],
                [0.5403, 0.9999, 0.8415, 0.0100]])
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even and at least 2, got {dim}; it is the key dimension of the layer")
        self.dim, self.base = dim, number("rotary base", base, 1)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turns every head of every token by its position.

        Args:
            x: [B,T,H,K], any float dtype.
            positions: of the tokens in their sequences, [B,T], [1,T] or [T], whole numbers or not.

        Returns:
            [B,T,H,K] in the dtype of x, computed in float32 at least.

        Raises:
            ValueError: If the shapes do not fit.
        """
        if x.ndim != 4 or x.shape[3] != self.dim:
            raise ValueError(f"x must be [B,T,H,K = {self.dim}], got {list(x.shape)}")
        check_positions(positions, x)
        wide = at_least_float32(x)
        angles = self.angles(positions).unsqueeze(-2)
        cos, sin = angles.cos().to(wide.dtype), angles.sin().to(wide.dtype)
        first, second = wide.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def angles(self, positions: Tensor) -> Tensor:
        """[...,K/2] in float64, for positions [...]."""
        pairs = torch.arange(0, self.dim, 2, dtype=torch.float64, device=positions.device)
        return positions.to(torch.float64).unsqueeze(-1) * self.base ** (-pairs / self.dim)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        """The operations on each of `heads` vectors, at the position of their row."""
        return build.rotate(x, heads, self.base)

    def reset_parameters(self) -> None:
        """Nothing: there is nothing to draw."""
        return

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}"
