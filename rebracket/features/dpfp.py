"""Deterministic parameter-free projection (DPFP)."""

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.base.checks import whole
from rebracket.features.base import FeatureMap, both_signs
from rebracket.ops.program import Builder, Value


@final
class Dpfp(FeatureMap):
    """Products of the rectified vector with its own rotations: sparse, nearly orthogonal features.

    phi(x) = [r_i r_((i + j) mod 2d) for j = 1..nu, i = 0..2d-1] with r = [max(x, 0), max(-x, 0)]

    Args:
        dim: d, the size of the vectors.
        nu: rotations, 1 to 2d - 1; each adds 2d features.

    Raises:
        ValueError: If nu is out of range.

    Cost: 2 d nu multiplications. dim_out = 2 d nu; positive.

    Source: Schlag et al. 2021, "Linear transformers are secretly fast weight programmers".

    Example:
        >>> import torch
        >>> Dpfp(2)(torch.tensor([3.0, -2.0]))  # r = [3, 0, 0, 2]
        tensor([0., 0., 0., 6.])
    """

    def __init__(self, dim: int, *, nu: int = 1) -> None:
        super().__init__(dim, 2 * dim * whole("nu", nu), positive=True)
        if nu >= 2 * dim:
            raise ValueError(f"nu must be below 2 dim = {2 * dim}, where rotations repeat, got {nu}")
        self.nu = nu

    def features(self, x: Tensor) -> Tensor:
        r = F.relu(torch.cat([x, -x], -1))
        return torch.cat([r * r.roll(-j, -1) for j in range(1, self.nu + 1)], -1)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        r = build.apply("relu", both_signs(build, x, heads))
        place = torch.arange(2 * self.dim_in)
        turned = torch.cat([place.roll(-j) for j in range(1, self.nu + 1)])
        return build.pair(
            "multiply", build.select_each(r, heads, place.repeat(self.nu)), build.select_each(r, heads, turned)
        )
