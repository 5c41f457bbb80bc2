"""The short convolution in torch operations: W passes over x, which on CPUs are faster than torch's own convolution."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.ops.backend import Implementation
from rebracket.ops.call import Convolution
from rebracket.ops.native import check_readable
from rebracket.ops.precision import at_least_float32, without_autocast


@final
class TorchConvolution(Implementation[Convolution]):
    """W passes over the inputs."""

    call: ClassVar[type[Convolution]] = Convolution

    def covers(self, call: Convolution) -> str | None:
        return None

    def run(self, call: Convolution) -> tuple[Tensor, Tensor]:
        check_readable(call.tensors())
        with without_autocast(call.x):
            return padded(call) if call.cu_seqlens is None else packed(call, call.cu_seqlens)


def padded(call: Convolution) -> tuple[Tensor, Tensor]:
    """Every row is one sequence."""
    x, before = call.x, call.weight.shape[1] - 1
    inputs = F.pad(x, (0, 0, before, 0)) if call.tail is None else torch.cat([call.tail.to(x.dtype), x], 1)
    # A copy, or the few inputs that are kept would keep all of them alive.
    return filtered(inputs, call), inputs[:, x.shape[1] :].clone()


def packed(call: Convolution, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences one behind the other, with W - 1 earlier inputs in front of each, which keep them apart."""
    x, tail = call.x, call.tail
    before, N, T = call.weight.shape[1] - 1, call.sequences, x.shape[1]
    offsets, token = cu_seqlens.to(torch.int64), torch.arange(T, device=x.device)
    row = torch.searchsorted(offsets[1:].contiguous(), token, right=True)
    padding = (token >= offsets[-1])[:, None]
    places = token + before * (row + 1)  # of each token among all tokens and N + 1 runs of earlier inputs
    tails = before * torch.arange(N, device=x.device)[:, None] + torch.arange(before, device=x.device)
    inputs = x.new_zeros(1, T + before * (N + 1), x.shape[2])
    inputs = inputs.index_copy(1, places, x.masked_fill(padding, 0))
    if tail is not None:
        inputs = inputs.index_copy(
            1, (tails + offsets[:-1, None]).flatten(), tail.to(x.dtype).reshape(1, -1, x.shape[2])
        )
    # A window is numbered by its start, which is W - 1 before the token at its end.
    y = filtered(inputs, call).index_select(1, places - before).masked_fill(padding, 0)
    return y, inputs[0, tails + offsets[1:, None]]


def filtered(inputs: Tensor, call: Convolution) -> Tensor:
    """The convolution where it has all its inputs, and the activation: [B,T+W-1,D] to [B,T,D]."""
    wide = at_least_float32(inputs)
    T = inputs.shape[1] - call.weight.shape[1] + 1
    taps = call.weight.to(wide.dtype).T.contiguous().unbind()
    y = wide[:, :T] * taps[0]
    for j in range(1, len(taps)):
        y.addcmul_(wide[:, j : j + T], taps[j])
    if call.bias is not None:
        y = y + call.bias.to(wide.dtype)
    return (y if call.activation is None else F.silu(y)).to(inputs.dtype)
