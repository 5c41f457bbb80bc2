"""The short convolution on the kernels: forward and backward."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.covers import uncovered
from rebracket.backends.cpu.library import DTYPES, empty
from rebracket.backends.cpu.recurrence import contiguous_rows, known, pointer
from rebracket.ops.call import Convolution
from rebracket.ops.native import NativeOperator, Results, register

BLOCK = 256
"""Tokens of a unit of work, which is also what is summed up at a time in the gradients of weight and bias."""


@final
class ConvolutionCall(ctypes.Structure):
    """One call of the short convolution; the last line is for its backward pass alone."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("T", "D", "N", "width", "block", "blocks")),
        *((name, ctypes.c_int32) for name in ("silu", "dtype", "weight_dtype", "bias_dtype")),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("x_row", "x_token")),
        *((name, ctypes.c_void_p) for name in ("y", "tail", "tail_out", "weight", "bias", "offsets", "first_block")),
        ("grad_y", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("grad_y_row", "grad_y_token")),
        *(
            (name, ctypes.c_void_p)
            for name in ("grad_tail_out", "grad_x", "grad_tail", "sums", "grad_weight", "grad_bias")
        ),
    )


@final
class ConvolutionKernels(NativeOperator[Convolution]):
    """One pass over x, in blocks of tokens and strips of channels."""

    name: ClassVar[str] = "cpu_convolution"
    call: ClassVar[type[Convolution]] = Convolution
    results: ClassVar[int] = 2

    def covers(self, call: Convolution) -> str | None:
        return uncovered(call, "x", call.x)

    def run(self, call: Convolution) -> tuple[Tensor, Tensor]:
        y, tail = self.compute(call)
        return y, tail

    def flat(self, found: tuple[Tensor, Tensor]) -> Results:
        return found

    def forward(self, call: Convolution, keep: bool) -> Results:
        """y and the next tail."""
        call = readable(call)
        y, first = zero_padded(call), first_blocks(call)
        tail = y.new_empty(call.sequences, call.weight.shape[1] - 1, call.x.shape[2])
        native = describe(call, first, y, tail)
        library.kernel("convolution_forward", ConvolutionCall)(ctypes.byref(native))
        return y, tail

    def outline(self, call: Convolution, keep: bool) -> Results:
        x = call.x
        return x.new_empty(x.shape), x.new_empty(call.sequences, call.weight.shape[1] - 1, x.shape[2])

    def backward(self, call: Convolution, kept: Results, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        given, call = call, readable(call)
        D, W, (grad_y, grad_tail) = call.x.shape[2], call.weight.shape[1], grads
        first = first_blocks(call)
        native = describe(call, first, None, None)
        made = {"x": zero_padded(call), "weight": empty(D, W), "bias": empty(D)}
        if call.tail is not None:
            made["tail"] = torch.empty_like(call.tail)
        sums = empty(native.blocks, W + 1, D)
        if grad_y is not None:
            grad_y = contiguous_rows(grad_y)
            native.grad_y, (native.grad_y_row, native.grad_y_token, _) = grad_y.data_ptr(), grad_y.stride()
        grad_tail = None if grad_tail is None else grad_tail.contiguous()
        native.grad_tail_out, native.sums = pointer(grad_tail), sums.data_ptr()
        native.grad_x, native.grad_tail = made["x"].data_ptr(), pointer(made.get("tail"))
        native.grad_weight, native.grad_bias = made["weight"].data_ptr(), made["bias"].data_ptr()
        library.kernel("convolution_backward", ConvolutionCall)(ctypes.byref(native))
        return {name: made[name].to(x.dtype) for name, x in given.tensors().items() if name in made}


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


def first_blocks(call: Convolution) -> Tensor | None:
    """Where the blocks of every packed sequence begin, and in the end how many there are; an empty one has one."""
    if call.cu_seqlens is None:
        return None
    blocks = ((call.cu_seqlens.diff() + BLOCK - 1) // BLOCK).clamp(min=1)
    return torch.cat((blocks.new_zeros(1), blocks.cumsum(0)))


def describe(call: Convolution, first: Tensor | None, y: Tensor | None, tail: Tensor | None) -> ConvolutionCall:
    """The structure of a readable call."""
    x, weight, bias, N = call.x, call.weight, call.bias, call.sequences
    _, T, D = x.shape
    row, token, _ = x.stride()
    blocks = N * max(1, -(-T // BLOCK)) if first is None else int(first[-1])
    return ConvolutionCall(
        T, D, N, weight.shape[1], BLOCK, blocks, call.activation is not None,
        DTYPES[x.dtype], DTYPES[weight.dtype], 0 if bias is None else DTYPES[bias.dtype],
        x.data_ptr(), row, token, pointer(y), pointer(call.tail), pointer(tail), weight.data_ptr(), pointer(bias),
        pointer(call.cu_seqlens), pointer(first),
    )  # fmt: skip


def zero_padded(call: Convolution) -> Tensor:
    """Memory for a result over all tokens, zero in the padding behind the last packed sequence."""
    x = empty(*call.x.shape, dtype=call.x.dtype)
    if call.cu_seqlens is not None:
        x[:, int(call.cu_seqlens[-1]) :].zero_()
    return x


KERNELS = register(ConvolutionKernels())
