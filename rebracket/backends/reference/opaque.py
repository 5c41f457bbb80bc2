"""The chunked routine as one opaque torch operator, for torch.compile and torch.export.

A traced program must not be unrolled over the chunks of one particular length. Behind an operator the loop stays a
loop, T may be dynamic, and tracing costs nothing. The backward pass runs the routine again with gradients on.
"""
# ruff: noqa: ANN001, ANN202, ARG001  (a fake kernel repeats its operator's signature)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebracket.backends.reference import chunked
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output, State
from rebracket.ops.write import Sizes, Writes


def run(call: Recurrence, chunk: int) -> Output:
    """`chunked.run` through the operator."""
    writes, state = call.writes, call.initial()
    out, memory, key_sum = forward(
        call.q, writes.k, writes.v, writes.r, writes.beta, call.log_decay, call.bonus, state.memory, state.key_sum,
        call.cu_seqlens, writes.per_token, call.normalize, call.scale, chunk,
    )  # fmt: skip
    return Output(out, State(memory, key_sum if call.normalize else None))


@torch.library.custom_op("rebracket::reference", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    beta: Tensor | None,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    memory: Tensor,
    key_sum: Tensor | None,
    cu_seqlens: Tensor | None,
    per_token: int,
    normalize: bool,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (q, k, v, r, beta, log_decay, bonus, memory, key_sum)
    call = rebuild(tensors, cu_seqlens, per_token, normalize, scale)
    out, state = chunked.run(call, chunk)
    return out.clone(), state.memory.clone(), memory.new_empty(0) if state.key_sum is None else state.key_sum.clone()


@forward.register_fake
def _(q, k, v, r, beta, log_decay, bonus, memory, key_sum, cu_seqlens, per_token, normalize, scale, chunk):
    out = q.new_empty(q.shape[0], q.shape[1], *v.shape[2:])
    return out, torch.empty_like(memory), key_sum.clone() if normalize else memory.new_empty(0)


def rebuild(
    tensors: tuple[Tensor | None, ...], cu_seqlens: Tensor | None, per_token: int, normalize: bool, scale: float
) -> Recurrence:
    """The call behind the operator's flat arguments."""
    q, k, v, r, beta, log_decay, bonus, memory, key_sum = tensors
    assert q is not None
    assert k is not None
    assert v is not None
    assert memory is not None
    sizes = Sizes(q.shape[0], q.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3])
    state = State(memory, key_sum if normalize else None)
    return Recurrence(q, Writes(k, v, r, beta, per_token), log_decay, bonus, normalize, scale, state, cu_seqlens, sizes)


# A `custom_op` runs below autograd, where no gradient can be taken; a kernel registered without one runs above it.
torch.library.define(
    "rebracket::reference_backward",
    "(Tensor grad_out, Tensor grad_memory, Tensor grad_key_sum, Tensor[] tensors, bool[] present, Tensor? cu_seqlens, "
    "int per_token, bool normalize, float scale, SymInt chunk) -> Tensor[]",
)


@torch.library.impl("rebracket::reference_backward", "CompositeExplicitAutograd")
def backward(
    grad_out: Tensor,
    grad_memory: Tensor,
    grad_key_sum: Tensor,
    tensors: list[Tensor],
    present: list[bool],
    cu_seqlens: Tensor | None,
    per_token: int,
    normalize: bool,
    scale: float,
    chunk: int,
) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    given = iter(leaves)
    call = rebuild(tuple(next(given) if here else None for here in present), cu_seqlens, per_token, normalize, scale)
    with torch.enable_grad():
        out, state = chunked.run(call, chunk)
    ends = [(out, grad_out), (state.memory, grad_memory)]
    if state.key_sum is not None:
        ends.append((state.key_sum, grad_key_sum))
    ends = [(end, grad) for end, grad in ends if end.requires_grad]
    grads = torch.autograd.grad([end for end, _ in ends], leaves, [grad for _, grad in ends], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.clone() for x, g in zip(leaves, grads, strict=True)]


@torch.library.register_fake("rebracket::reference_backward")
def _(grad_out, grad_memory, grad_key_sum, tensors, present, cu_seqlens, per_token, normalize, scale, chunk):
    return [torch.empty_like(x) for x in tensors]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, ctx.options = inputs[:9], inputs[10:]
    ctx.present = [x is not None for x in tensors]
    ctx.packed = inputs[9] is not None
    ctx.save_for_backward(*(x for x in (*tensors, inputs[9]) if x is not None))


def differentiate(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    cu_seqlens = saved.pop() if ctx.packed else None
    found = iter(torch.ops.rebracket.reference_backward(*grads, saved, ctx.present, cu_seqlens, *ctx.options))
    return *(next(found) if here else None for here in ctx.present), *(None,) * 5


forward.register_autograd(differentiate, setup_context=keep)
