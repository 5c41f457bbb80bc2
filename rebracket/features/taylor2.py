"""The second-order Taylor polynomial of softmax's kernel."""

from typing import final

import torch
from torch import Tensor

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


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

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        d = self.dim_in
        one = build.apply("exp", x.part(0, 1), before=0.0)
        y = build.together(one, x)  # the 1 at place 0, entry i of head h at place 1 + h d + i
        pairs = [(i, i + distance) for distance in range(1, d) for i in range(d - distance)]
        first = torch.tensor([-1, *range(d), *range(d), *(i for i, _ in pairs)])
        second = torch.tensor([-1] * (d + 1) + [*range(d), *(j for _, j in pairs)])
        factors = [1.0] + [d**-0.25] * d + [(2 * d) ** -0.5] * d + [d**-0.5] * len(pairs)
        a, b = (torch.where(i < 0, 0, 1 + i + d * torch.arange(heads)[:, None]).flatten() for i in (first, second))
        return build.pair(
            "multiply", build.select(y, a, torch.tensor(factors * heads, dtype=torch.float64)), build.select(y, b)
        )
