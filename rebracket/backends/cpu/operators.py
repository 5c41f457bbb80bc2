"""The kernels as torch operators, for torch.compile and torch.export: a traced program holds one call.

Eager calls do not come here: the first use of such an operator imports the compiler, which takes a second.
"""
# ruff: noqa: ANN001, ANN202, ARG001  (a fake kernel repeats its operator's signature)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebracket.backends.cpu import calls
from rebracket.backends.cpu.calls import Terms
from rebracket.backends.cpu.library import load


@torch.library.custom_op("rebracket::cpu", mutates_args=(), device_types="cpu")
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    beta: Tensor | None,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    memory: Tensor | None,
    key_sum: Tensor | None,
    cu_seqlens: Tensor | None,
    per_token: int,
    normalize: bool,
    scale: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    terms = Terms(q, k, v, r, beta, log_decay, bonus, memory, key_sum, cu_seqlens, per_token, normalize, scale)
    return calls.forward(terms, load(), keep)


@forward.register_fake
def _(q, k, v, r, beta, log_decay, bonus, memory, key_sum, cu_seqlens, per_token, normalize, scale, keep):
    N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    H, V, K = *v.shape[2:], q.shape[3]
    state = q.new_empty(N, H, K, V, dtype=torch.float32)
    key_sum = state.new_empty((N, H, K) if normalize else (0,))
    segments = fake_segments(q, cu_seqlens, per_token) if keep else 0
    return q.new_empty(*q.shape[:2], H, V), state, key_sum, state.new_empty(segments, H, K * (V + normalize))


def fake_segments(q: Tensor, cu_seqlens: Tensor | None, per_token: int) -> Any:
    """How many states are kept; unknown for packed sequences until their lengths are."""
    if cu_seqlens is not None:
        return torch.library.get_ctx().new_dynamic_size()
    return q.shape[0] * ((q.shape[1] * per_token + calls.SEGMENT - 1) // calls.SEGMENT)


@torch.library.custom_op("rebracket::cpu_backward", mutates_args=(), device_types="cpu")
def backward(
    entries: Tensor,
    grad_out: Tensor,
    grad_memory: Tensor,
    grad_key_sum: Tensor,
    tensors: list[Tensor],
    present: list[bool],
    cu_seqlens: Tensor | None,
    per_token: int,
    normalize: bool,
    scale: float,
) -> list[Tensor]:
    given = iter(tensors)
    found = [next(given) if here else None for here in present]
    terms = Terms(*found, cu_seqlens, per_token, normalize, scale)  # type: ignore[arg-type]
    grads = calls.backward(terms, load(), entries, grad_out, grad_memory, grad_key_sum)
    return [grad for grad in grads if grad is not None]


@backward.register_fake
def _(entries, grad_out, grad_memory, grad_key_sum, tensors, present, cu_seqlens, per_token, normalize, scale):
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, cu_seqlens, ctx.per_token, ctx.normalize, ctx.scale = inputs[:9], *inputs[9:13]
    ctx.present = [x is not None for x in tensors]
    ctx.packed = cu_seqlens is not None
    ctx.save_for_backward(output[3], *(x for x in (*tensors, cu_seqlens) if x is not None))


def differentiate(ctx: Any, grad_out: Tensor, grad_memory: Tensor, grad_key_sum: Tensor, _: Tensor) -> tuple[Any, ...]:
    entries, *saved = ctx.saved_tensors
    cu_seqlens = saved.pop() if ctx.packed else None
    options = cu_seqlens, ctx.per_token, ctx.normalize, ctx.scale
    found = iter(backward(entries, grad_out, grad_memory, grad_key_sum, saved, ctx.present, *options))
    return *(next(found) if here else None for here in ctx.present), *(None,) * 5


forward.register_autograd(differentiate, setup_context=keep)
