"""The short convolution on the kernels: calls on tensors, and these under autograd in eager mode."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rebracket.backends.cpu.calls import contiguous_rows, known, pointer
from rebracket.backends.cpu.library import DTYPES, empty, load
from rebracket.backends.cpu.library import Convolution as Structure
from rebracket.ops.convolution import Convolution

BLOCK = 256
"""Tokens of a unit of work, which is also what is summed up at a time in the gradients of weight and bias."""


def readable(call: Convolution) -> Convolution:
    """The same call in tensors that the kernels can read in place; only what they cannot is copied."""
    x, bias, tail, cu_seqlens = contiguous_rows(call.x), call.bias, call.tail, call.cu_seqlens
    return Convolution(
        x,
        known(call.weight).contiguous(),
        None if bias is None else known(bias).contiguous(),
        None if tail is None else (tail if tail.dtype == x.dtype else tail.to(x.dtype)).contiguous(),
        None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous(),
        call.activation,
    )


def first_blocks(cu_seqlens: Tensor) -> Tensor:
    """Where the blocks of every packed sequence begin, and in the end how many there are; an empty one has one."""
    blocks = ((cu_seqlens.diff() + BLOCK - 1) // BLOCK).clamp(min=1)
    return torch.cat((blocks.new_zeros(1), blocks.cumsum(0)))


def describe(call: Convolution, first: Tensor | None, y: Tensor | None, tail: Tensor | None) -> Structure:
    """The structure of a readable call."""
    x, weight, bias, N = call.x, call.weight, call.bias, call.sequences
    _, T, D = x.shape
    row, token, _ = x.stride()
    blocks = N * max(1, -(-T // BLOCK)) if first is None else int(first[-1])
    return Structure(
        T, D, N, weight.shape[1], BLOCK, blocks, call.activation is not None,
        DTYPES[x.dtype], DTYPES[weight.dtype], 0 if bias is None else DTYPES[bias.dtype],
        x.data_ptr(), row, token, pointer(y), pointer(call.tail), pointer(tail), weight.data_ptr(), pointer(bias),
        pointer(call.cu_seqlens), pointer(first),
    )  # fmt: skip


def blank(call: Convolution) -> Tensor:
    """Memory for a result over all tokens, zero beyond the last sequence."""
    x = empty(*call.x.shape, dtype=call.x.dtype)
    if call.cu_seqlens is not None:
        x[:, int(call.cu_seqlens[-1]) :].zero_()
    return x


def forward(call: Convolution) -> tuple[Tensor, Tensor]:
    """y and the next tail."""
    call = readable(call)
    y, first = blank(call), None if call.cu_seqlens is None else first_blocks(call.cu_seqlens)
    tail = y.new_empty(call.sequences, call.weight.shape[1] - 1, call.x.shape[2])
    load().convolve(describe(call, first, y, tail))
    return y, tail


def backward(
    call: Convolution, grad_y: Tensor | None, grad_tail: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, weight, bias and tail; those of the results may be missing."""
    given, call = call, readable(call)
    D, W = call.x.shape[2], call.weight.shape[1]
    first = None if call.cu_seqlens is None else first_blocks(call.cu_seqlens)
    structure = describe(call, first, None, None)
    x, tail = blank(call), None if call.tail is None else torch.empty_like(call.tail)
    weight, bias, sums = empty(D, W), empty(D), empty(structure.blocks, W + 1, D)
    if grad_y is not None:
        grad_y = contiguous_rows(grad_y)
        structure.grad_y, (structure.grad_y_row, structure.grad_y_token, _) = grad_y.data_ptr(), grad_y.stride()
    if grad_tail is not None:
        grad_tail = grad_tail.contiguous()
    structure.grad_tail_out, structure.grad_x, structure.grad_tail = pointer(grad_tail), x.data_ptr(), pointer(tail)
    structure.sums, structure.grad_weight, structure.grad_bias = map(pointer, (sums, weight, bias))
    load().convolve_back(structure)
    return (
        x,
        weight.to(given.weight.dtype),
        None if given.bias is None else bias.to(given.bias.dtype),
        None if tail is None or given.tail is None else tail.to(given.tail.dtype),
    )


@final
class Kernels(torch.autograd.Function):
    """Forward and backward of a `Convolution`, given as its fields in their order; differentiable once."""

    @staticmethod
    def forward(ctx: Any, *fields: Any) -> tuple[Tensor, Tensor]:
        *tensors, ctx.activation = fields
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return forward(Convolution(*fields))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor | None, grad_tail: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, tail, cu_seqlens = ctx.saved_tensors
        call = Convolution(x, weight, bias, tail, cu_seqlens, ctx.activation)
        return *backward(call, grad_y, grad_tail), None, None


def needs_gradient(call: Convolution) -> bool:
    """Whether any tensor of the call takes part in autograd."""
    tensors = (call.x, call.weight, call.bias, call.tail)
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
