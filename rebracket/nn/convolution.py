"""A short causal convolution over time, one filter a channel, with the few inputs it must remember."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.ops.precision import at_least_float32
from rebracket.ops.validate import check_packing
from rebracket.ops.write import Sizes

Activation = Literal["silu"] | None


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
        if channels < 1 or width < 1:
            raise ValueError(f"channels and width must be at least 1, got {channels} and {width}")
        if activation not in ("silu", None):
            raise ValueError(f"activation must be 'silu' or None, got {activation!r}")
        self.channels, self.width, self.activation = channels, width, activation
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws w and b uniformly from +- 1 / sqrt(width)."""
        bound = 1 / math.sqrt(self.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, tail: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Reads a stretch of tokens; see `short_convolution` for the shapes."""
        y, tail = short_convolution(x, self.weight, self.bias, tail, cu_seqlens)
        return self.activate(y), tail

    def step(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Reads one token a row.

        Args:
            x: [B,D].
            tail: [B,width-1,D], what the call before returned; zeros at the start.

        Returns:
            y [B,D] and the next tail, in the dtype of x.
        """
        if x.ndim != 2 or x.shape[1] != self.channels:
            raise ValueError(f"x must be [B,D = {self.channels}], got {list(x.shape)}")
        check_tail(tail, x.shape[0], self.width, self.channels)
        seen = torch.cat([tail.to(x.dtype), x.unsqueeze(1)], 1)
        wide = at_least_float32(seen)
        y = (wide * self.weight.T.to(wide.dtype)).sum(1)
        if self.bias is not None:
            y = y + self.bias
        return self.activate(y.to(x.dtype)), seen[:, 1:]

    def activate(self, y: Tensor) -> Tensor:
        return y if self.activation is None else F.silu(y)

    def extra_repr(self) -> str:
        return f"{self.channels}, width={self.width}, activation={self.activation!r}, bias={self.bias is not None}"


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tail: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal convolution of every channel with its own filter; any cutting of the sequence gives the same.

    y_t = b + sum_j w_j * x_(t - W + 1 + j),  j = 0..W-1

    Args:
        x: inputs [B,T,D], any T; computed in float32 at least.
        weight: w, [D,W], the newest token's weight last.
        bias: b, [D].
        tail: the W - 1 inputs before x, [N,W-1,D], oldest first; zeros by default.
        cu_seqlens: offsets [N+1] of N sequences packed in one row (B = 1), from 0; tokens beyond the last are a tail
            whose outputs are 0.

    Returns:
        y [B,T,D], and the last W - 1 inputs of each of the B or N sequences, [N,W-1,D]; both in the dtype of x.

    Raises:
        ValueError: If a shape does not fit, by the name of its argument.

    Cost: W multiply-adds a token and channel as W passes over x (torch's own convolution is slower on CPUs); packed,
    two copies of x more.

    Source: Fu et al. 2023 (H3); Gu and Dao 2023 (Mamba).

    Example:
        >>> y, tail = short_convolution(torch.ones(1, 3, 1), torch.ones(1, 2))
        >>> y.flatten().tolist(), tail.flatten().tolist()
        ([1.0, 2.0, 2.0], [1.0])
    """
    check_filter(x, weight, bias)
    check_packing(cu_seqlens, Sizes(x.shape[0], x.shape[1], 1, 1, x.shape[2], x.shape[2]))
    N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if tail is not None:
        check_tail(tail, N, weight.shape[1], x.shape[2])
    if cu_seqlens is None:
        return padded(x, weight, bias, tail)
    return packed(x, weight, bias, tail, cu_seqlens)


def check_filter(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.ndim != 3:
        raise ValueError(f"x must be [B,T,D], got {list(x.shape)}")
    D = x.shape[2]
    if weight.ndim != 2 or weight.shape[0] != D or weight.shape[1] < 1:
        raise ValueError(f"weight must be [D,W] = [{D}, W >= 1], got {list(weight.shape)}")
    if bias is not None and list(bias.shape) != [D]:
        raise ValueError(f"bias must be [D] = [{D}], got {list(bias.shape)}")


def check_tail(tail: Tensor, N: int, width: int, D: int) -> None:
    if list(tail.shape) != [N, width - 1, D]:
        raise ValueError(f"tail must be [N,W-1,D] = {[N, width - 1, D]}, got {list(tail.shape)}")


def padded(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every row is one sequence."""
    before = weight.shape[1] - 1
    inputs = F.pad(x, (0, 0, before, 0)) if tail is None else torch.cat([tail.to(x.dtype), x], 1)
    # A copy, or the few inputs of the tail would keep all of them alive.
    return filtered(inputs, weight, bias), inputs[:, x.shape[1] :].clone()


def packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor | None, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Sequences one behind the other: put W - 1 earlier inputs before each, and they no longer touch."""
    before, N, T = weight.shape[1] - 1, cu_seqlens.shape[0] - 1, x.shape[1]
    offsets, token = cu_seqlens.to(torch.int64), torch.arange(T, device=x.device)
    row = torch.searchsorted(offsets[1:].contiguous(), token, right=True)
    beyond = (token >= offsets[-1])[:, None]
    places = token + before * (row + 1)  # of each token, among all tokens and N + 1 stretches of earlier inputs
    tails = before * torch.arange(N, device=x.device)[:, None] + torch.arange(before, device=x.device)
    inputs = x.new_zeros(1, T + before * (N + 1), x.shape[2])
    inputs = inputs.index_copy(1, places, x.masked_fill(beyond, 0))
    if tail is not None:
        inputs = inputs.index_copy(
            1, (tails + offsets[:-1, None]).flatten(), tail.to(x.dtype).reshape(1, -1, x.shape[2])
        )
    # The output of the window that ends at a token's place stands W - 1 before it: a window is named by its start.
    y = filtered(inputs, weight, bias).index_select(1, places - before).masked_fill(beyond, 0)
    return y, inputs[0, tails + offsets[1:, None]]


def filtered(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution where it has all its inputs: [B,T+W-1,D] to [B,T,D]."""
    wide = at_least_float32(inputs)
    T = inputs.shape[1] - weight.shape[1] + 1
    taps = weight.to(wide.dtype).T.contiguous().unbind()
    y = wide[:, :T] * taps[0]
    for j in range(1, len(taps)):
        y.addcmul_(wide[:, j : j + T], taps[j])
    if bias is not None:
        y = y + bias
    return y.to(inputs.dtype)
