"""The interface of a feature map: a function of one vector, whose inner products are the kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rebracket.base.checks import whole
from rebracket.ops.precision import at_least_float32, without_autocast
from rebracket.ops.program import Builder, Value, not_lowered


class FeatureMap(nn.Module, ABC):
    """A function phi of one query or key vector; phi(q) . phi(k) stands for softmax's exp(q . k / sqrt(d)).

    weight of key j for query i = phi(q_i) . phi(k_j)

    A map that approximates the softmax kernel contains the factor 1 / sqrt(d), so its caller passes scale=1 (the
    default of the operator with normalize=True). Half-precision vectors are computed in float32 and returned in their
    own dtype; autocast does not reach inside.

    Args:
        dim_in: d, the size of the vectors, >= 1.
        dim_out: the number of features.
        positive: whether phi(q) . phi(k) >= 0 for all q and k, so that a normalizer cannot cancel to nothing.

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(self, dim_in: int, dim_out: int, *, positive: bool) -> None:
        super().__init__()
        self.dim_in = whole("dim_in", dim_in)
        self.dim_out = whole("dim_out", dim_out)
        self.positive = positive

    def forward(self, x: Tensor) -> Tensor:
        """phi(x), for keys and, unless a map treats queries differently, for queries.

        Args:
            x: [..., dim_in], any float dtype.

        Returns:
            [..., dim_out] in the dtype of x.

        Raises:
            ValueError: If the last axis of x is not dim_in.
        """
        return self.in_float32(self.features, x)

    def queries(self, x: Tensor) -> Tensor:
        """The features of queries: phi(x), up to a positive factor per query that a normalizer divides out.

        As a method it is not between the map's own hooks, which see keys; those of modules inside the map see both.
        """
        return self.in_float32(self.query_features, x)

    def reset_parameters(self) -> None:
        """Initializes every parameter and buffer again, in place; most maps have none."""
        return

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """phi of x [..., dim_in] in float32 or float64."""

    def query_features(self, x: Tensor) -> Tensor:
        return self.features(x)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        """The operations of `forward` on each of `heads` vectors x [heads dim_in], to [heads dim_out]."""
        not_lowered(self)

    def lower_queries(self, build: Builder, x: Value, heads: int) -> Value:
        """Those of `queries`."""
        if type(self).query_features is not FeatureMap.query_features:
            not_lowered(self, "it has query features and no `lower_queries`")
        return self.lower(build, x, heads)

    def in_float32(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x), computed in at least float32 and returned in the dtype of x."""
        if x.ndim == 0 or x.shape[-1] != self.dim_in:
            raise ValueError(f"x must be [..., dim_in = {self.dim_in}], got {list(x.shape)}; put the features last")
        with without_autocast(x):
            return function(at_least_float32(x)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim_in} -> {self.dim_out}"


def both_signs(build: Builder, x: Value, heads: int) -> Value:
    """The operations of [x, -x] for each of `heads` vectors."""
    width = x.width // heads
    index = torch.arange(width).repeat(2)
    return build.select_each(x, heads, index, torch.ones(2 * width).index_fill(0, torch.arange(width, 2 * width), -1.0))
