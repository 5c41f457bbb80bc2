"""The short convolution's kernels as torch operators, for torch.compile and torch.export; as in `operators`."""
# ruff: noqa: ANN001, ANN202, ARG001  (a fake kernel repeats its operator's signature)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebracket.backends.cpu import convolution
from rebracket.ops.convolution import Activation, Convolution


@torch.library.custom_op("rebracket::cpu_convolution", mutates_args=(), device_types="cpu")
def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tail: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    return convolution.forward(Convolution(x, weight, bias, tail, cu_seqlens, named(activation)))


def named(activation: str | None) -> Activation:
    """An operator's argument can only be any string."""
    return None if activation is None else "silu"


@forward.register_fake
def _(x, weight, bias, tail, cu_seqlens, activation):
    N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return x.new_empty(x.shape), x.new_empty(N, weight.shape[1] - 1, x.shape[2])


@torch.library.custom_op("rebracket::cpu_convolution_backward", mutates_args=(), device_types="cpu")
def backward(
    grad_y: Tensor,
    grad_tail: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tail: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> list[Tensor]:
    call = Convolution(x, weight, bias, tail, cu_seqlens, named(activation))
    return [grad for grad in convolution.backward(call, grad_y, grad_tail) if grad is not None]


@backward.register_fake
def _(grad_y, grad_tail, x, weight, bias, tail, cu_seqlens, activation):
    return [y.new_empty(y.shape) for y in (x, weight, bias, tail) if y is not None]


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def differentiate(ctx: Any, grad_y: Tensor, grad_tail: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    found = iter(backward(grad_y, grad_tail, *saved, ctx.activation))
    return *(None if x is None else next(found) for x in saved[:4]), None, None


forward.register_autograd(differentiate, setup_context=keep)
