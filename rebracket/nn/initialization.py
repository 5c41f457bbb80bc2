"""How projections draw their weights, so that every module can draw them again."""

import math

from torch import Tensor, nn

STD = 0.02


def draw(weight: Tensor, std: float = STD) -> None:
    """Fills a weight with normal numbers of standard deviation `std`; one on the meta device has no numbers to fill."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


def residual_std(layers: int) -> float:
    """The standard deviation for a projection that adds to the residual stream of `layers` blocks, two sums each."""
    return STD / math.sqrt(2 * layers)
