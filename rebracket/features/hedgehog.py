"""A learned projection and its negative through softmax."""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.base.checks import one_of, whole
from rebracket.features.base import FeatureMap, both_signs
from rebracket.ops.program import Builder, Value

Activation = Literal["softmax", "exp"]


@final
class Hedgehog(FeatureMap):
    """A learned projection and its negative through a softmax or an exponential: spiky and monotone like attention.

    phi(x) = softmax([W x, -W x])   or   exp([W x, -W x])

    One W serves all heads that share the module; it starts as the identity.

    Args:
        dim: d, the size of the vectors.
        width: rows of W; d by default.
        activation: "softmax" over the features, or "exp" of each, which overflows as the map "exp" does.

    Raises:
        ValueError: If the width is below 1 or the activation unknown.

    Cost: width d multiply-adds and 2 width exponentials. dim_out = 2 width; positive.

    Source: Zhang et al. 2024, "The hedgehog and the porcupine"; with softmax in LoLCATs, Zhang et al. 2024.

    Example:
        >>> import torch
        >>> Hedgehog(2)(torch.tensor([3.0, -2.0])).detach()
        tensor([0.7262, 0.0049, 0.0018, 0.2671])
    """

    def __init__(self, dim: int, *, width: int | None = None, activation: Activation = "softmax") -> None:
        width = dim if width is None else whole("width", width)
        super().__init__(dim, 2 * width, positive=True)
        one_of("activation", activation, get_args(Activation))
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(width, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W = the identity, cut or padded with zeros."""
        nn.init.eye_(self.weight)

    def features(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.to(x.dtype))
        both = torch.cat([y, -y], -1)
        return both.softmax(-1) if self.activation == "softmax" else both.exp()

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        both = both_signs(build, build.product(x, self.weight, groups=heads, exact=True), heads)
        if self.activation == "exp":
            return build.apply("exp", both)
        return build.exponentials(both, heads, divided=True)
