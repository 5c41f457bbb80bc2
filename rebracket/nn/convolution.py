"""The short causal convolution as a layer."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from rebracket.base.checks import one_of, whole
from rebracket.ops.call import Activation
from rebracket.ops.convolution import short_convolution
from rebracket.ops.program import Builder, Value


@final
class ShortConvolution(nn.Module):
    """A causal convolution of every channel with its own short filter, and an activation.

    y_t = act(b + sum_j w_j * x_(t - width + 1 + j)),  j = 0..width-1, x before the first token being the tail or 0

    Args:
        channels: D, >= 1.
        width: tokens that an output sees, itself included, >= 1.
        activation: "silu", or None for none.
        bias: whether b is there.

    Raises:
        ValueError: If a size is below 1 or the activation unknown.

    Cost: width multiply-adds a token and channel; the tail is (width - 1) D numbers a sequence.

    Source: H3 and Mamba; in linear attention since DeltaNet (Yang et al. 2024).

    Example:
        >>> convolution = ShortConvolution(6)
        >>> y, tail = convolution(torch.randn(2, 9, 6))
        >>> y, tail = convolution.step(torch.randn(2, 6), tail)
        >>> y.shape, tail.shape
        (torch.Size([2, 6]), torch.Size([2, 3, 6]))
    """

    def __init__(self, channels: int, width: int = 4, activation: Activation = "silu", bias: bool = False) -> None:
        super().__init__()
        one_of("activation", activation, (None, "silu"))
        self.channels, self.width = whole("channels", channels), whole("width", width)
        self.activation: Activation = activation
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws w and b uniformly from +- 1 / sqrt(width)."""
        bound = 1 / math.sqrt(self.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, tail: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Reads a sequence, or the next part of one; the shapes are those of `short_convolution`."""
        return short_convolution(x, self.weight, self.bias, tail, cu_seqlens, activation=self.activation)

    def step(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Reads one token of each row.

        Args:
            x: [B,D].
            tail: [B,width-1,D], what the call before returned; zeros at the start.

        Returns:
            y [B,D] and the next tail, in the dtype of x.
        """
        if x.ndim != 2 or x.shape[1] != self.channels:
            raise ValueError(f"x must be [B,D = {self.channels}], got {list(x.shape)}")
        y, tail = self(x.unsqueeze(1), tail)
        return y.squeeze(1), tail

    def lower(self, build: Builder, x: Value) -> Value:
        """The operations of one token, whose tail the slot holds."""
        return build.convolve(x, self.weight, self.bias, silu=self.activation == "silu")

    def extra_repr(self) -> str:
        return f"{self.channels}, width={self.width}, activation={self.activation!r}, bias={self.bias is not None}"
