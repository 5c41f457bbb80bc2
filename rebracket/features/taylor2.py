"""The second-order Taylor polynomial of softmax's kernel."""

from typing import final

import torch
from torch import Tensor

from rebracket.features.base import FeatureMap


@final
class Taylor2(FeatureMap):
    """All products of up to two entries, each pair once, so that the kernel is the Taylor polynomial of exp.

    phi(x) = [1, y, y_i y_j for i < j, y_i^2 / sqrt(2)] with y = x / d^(1/4)

    phi(q) . phi(k) = 1 + s + s^2 / 2 with s = q . k / sqrt(d)

    It falls again below s = -1, but never under 1/2.

    Args:
        dim: d, the size of the vectors.

    Cost: d (d + 1) / 2 multiplications. dim_out = 1 + d + d (d + 1) / 2 (153 at d = 16); positive.

    Source: Arora et al. 2024, "Simple linear attention language models balance the recall-throughput tradeoff" (Based).

    Example:
        >>> import torch
        >>> Taylor2(1)(torch.tensor([2.0]))
        tensor([1.0000, 2.0000, 2.8284])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 1 + dim + dim * (dim + 1) // 2, positive=True)

    def features(self, x: Tensor) -> Tensor:
        y = x * self.dim_in**-0.25
        squares = y * y * 0.5**0.5
        # Pairs by their distance: slicing is several times faster than indexing all pairs, forward and backward.
        pairs = [y[..., :-distance] * y[..., distance:] for distance in range(1, self.dim_in)]
        return torch.cat([torch.ones_like(y[..., :1]), y, squares, *pairs], -1)
