"""Linear projections: plain ones, and those of gates and decays, whose numbers must not be rounded."""

import math
import warnings
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.ops.precision import at_least_float32, without_autocast
from rebracket.ops.program import Builder, Value

STREAM_GAIN = 0.5
"""Root mean square of the residual stream at first, times sqrt(d_model): of logits at its transpose, tied or not."""


def draw(weight: Tensor, gain: float = 1.0) -> None:
    """Fills a weight [out,in] with normal numbers of variance gain^2 / in; one on the meta device has none to fill."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=gain / math.sqrt(weight.shape[1]))


def residual_gain(d_model: int, layers: int) -> float:
    """The gain of a projection that adds to the residual stream: the 2 `layers` sums add up to about the embedding."""
    return STREAM_GAIN / math.sqrt(2 * layers * d_model)


@final
class Projection(nn.Linear):
    """x W^T, whose first weights keep the size of x, times a gain: W from N(0, gain^2 / dim_in).

    Tools that look for `nn.Linear` itself pass this subclass by; of torch's `quantize_dynamic` it says so in a warning.

    Args:
        dim_in, dim_out: sizes of the last axis, >= 1.
        gain: of the first weights, >= 0: about what the root mean square of x W^T is to that of x.

    Example:
        >>> import torch
        >>> Projection(4, 2)(torch.ones(1, 3, 4)).shape
        torch.Size([1, 3, 2])
    """

    gain = 1.0

    def __init__(self, dim_in: int, dim_out: int, gain: float = 1.0) -> None:
        super().__init__(dim_in, dim_out, bias=False)
        self.gain = gain
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws W from N(0, gain^2 / dim_in)."""
        draw(self.weight, self.gain)

    @property
    def qconfig(self) -> None:
        """How torch's quantization is to replace this layer: not at all."""
        return None

    @qconfig.setter
    def qconfig(self, asked: object) -> None:
        warnings.warn(
            "torch's quantization replaces nn.Linear itself, so this Projection stays float; a program has rounded "
            'weights: Running(weights="int8"), or rebracket generate --weights int8',
            stacklevel=2,
        )

    @qconfig.deleter
    def qconfig(self) -> None:
        """Torch takes back what it asked; nothing was kept."""

    def lower(self, build: Builder, x: Value, plus: Value | None = None) -> Value:
        """The operations of `forward`, and of a sum with `plus`."""
        return build.product(x, self.weight, plus=plus)


@final
class GateProjection(nn.Linear):
    """x W^T + b in float32 (float64 for float64), whatever autocast asks for.

    A decay is raised to the power of the sequence's length, so a rounded one is another memory span.

    Args:
        dim_in, dim_out: sizes of the last axis, >= 1.
        bias: whether b is there; it starts at 0.

    Example:
        >>> import torch
        >>> GateProjection(4, 2)(torch.ones(1, 3, 4, dtype=torch.bfloat16)).dtype
        torch.float32
    """

    def __init__(self, dim_in: int, dim_out: int, *, bias: bool = False) -> None:
        super().__init__(dim_in, dim_out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        with without_autocast(x):
            return F.linear(wide, self.weight.to(wide.dtype), None if self.bias is None else self.bias.to(wide.dtype))

    def reset_parameters(self) -> None:
        """Draws W from N(0, 1 / dim_in), b = 0."""
        draw(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def lower(self, build: Builder, x: Value) -> Value:
        """The operations of `forward`, with weights that no format rounds."""
        return build.product(x, self.weight, self.bias, exact=True)


@final
class LowRankProjection(nn.Module):
    """x W1^T W2^T + b through a narrow middle, in float32 as `GateProjection`.

    Args:
        dim_in, rank, dim_out: sizes, >= 1.
        bias: whether b is there.

    Cost: rank (dim_in + dim_out) multiply-adds a token.

    Example:
        >>> import torch
        >>> LowRankProjection(8, 2, 6)(torch.ones(1, 3, 8)).shape
        torch.Size([1, 3, 6])
    """

    def __init__(self, dim_in: int, rank: int, dim_out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.down = GateProjection(dim_in, rank)
        self.up = GateProjection(rank, dim_out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))

    def reset_parameters(self) -> None:
        """Draws both factors again, each by its own inputs: W1 from N(0, 1 / dim_in), W2 from N(0, 1 / rank), b = 0."""
        self.down.reset_parameters()
        self.up.reset_parameters()

    def lower(self, build: Builder, x: Value) -> Value:
        """The operations of `forward`."""
        return self.up.lower(build, self.down.lower(build, x))
