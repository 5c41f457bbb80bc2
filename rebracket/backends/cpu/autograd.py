"""The kernels under autograd, in eager mode: nothing between the call and the kernels but torch's own bookkeeping."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rebracket.backends.cpu import calls
from rebracket.backends.cpu.calls import Terms
from rebracket.backends.cpu.library import load


@final
class Kernels(torch.autograd.Function):
    """Forward and backward of `Terms`, given as its fields in their order; differentiable once."""

    @staticmethod
    def forward(ctx: Any, *fields: Any) -> tuple[Tensor, Tensor, Tensor]:
        terms = Terms(*fields)
        out, memory, key_sum, entries = calls.forward(terms, load(), keep=True)
        ctx.save_for_backward(entries, *(x if isinstance(x, Tensor) else None for x in fields))
        ctx.others = [None if isinstance(x, Tensor) else x for x in fields]
        ctx.r_is_k = terms.r is terms.k
        ctx.set_materialize_grads(False)
        return out, memory, key_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        entries, *tensors = ctx.saved_tensors
        terms = Terms(*(other if x is None else x for x, other in zip(tensors, ctx.others, strict=True)))
        grad_out = torch.zeros_like(out_like(terms)) if grads[0] is None else grads[0]
        found = calls.backward(terms, load(), entries, grad_out, grads[1], grads[2], ctx.r_is_k)
        return *found, *(None,) * (len(tensors) - len(found))


def out_like(terms: Terms) -> Tensor:
    """Something of the shape and dtype of the output."""
    return terms.q.new_empty(*terms.q.shape[:2], *terms.v.shape[2:])
