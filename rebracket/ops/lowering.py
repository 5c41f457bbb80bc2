"""From the arguments of the public functions to one call, whose writes have the same form for all rules."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rebracket.base.checks import truth
from rebracket.ops.call import Recurrence, Step
from rebracket.ops.checks import check_call, check_inplace, check_token, check_write, readable
from rebracket.ops.native import check_readable
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule, Writes


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    write: WriteRule,
    bonus: Tensor | None,
    normalize: bool,
    scale: float | None,
    state: State | None,
    cu_seqlens: Tensor | None,
    causal: bool,
    *,
    shapes_only: bool = False,
) -> Recurrence:
    """The checked call; with `shapes_only` its writes have shapes and no numbers, and nothing is computed."""
    check_call(q, k, v, log_decay, write, bonus, normalize, state, cu_seqlens)
    truth("causal", causal)
    writes = lower_shapes(k, v, write) if shapes_only else lower(k, v, write, cu_seqlens)
    return lowered(q, writes, log_decay, bonus, normalize, scale, state, cu_seqlens, causal)


def lowered(
    q: Tensor,
    writes: Writes,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    normalize: bool,
    scale: float | None,
    state: State | None,
    cu_seqlens: Tensor | None = None,
    causal: bool = True,
) -> Recurrence:
    """The call of checked arguments."""
    r_is_k = writes.r is writes.k
    return Recurrence(
        q=q,
        k=writes.k,
        v=writes.v,
        r=None if r_is_k else writes.r,
        beta=writes.beta,
        log_decay=log_decay,
        bonus=bonus,
        memory=None if state is None else state.memory,
        key_sum=state.key_sum if normalize and state is not None else None,
        cu_seqlens=cu_seqlens,
        per_token=writes.per_token,
        r_is_k=r_is_k,
        normalize=normalize,
        scale=default_scale(scale, normalize, q.shape[-1]),
        causal=causal,
        chunk=None,
    )


def make_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    write: WriteRule,
    bonus: Tensor | None,
    normalize: bool,
    scale: float | None,
    state: State,
    inplace: bool,
) -> Step:
    """The checked call that the arguments of `step` describe."""
    check_write(write)
    check_token(q, k, v, log_decay, state, write)
    truth("inplace", inplace)
    if inplace:
        check_inplace(state, q.dtype, normalize)
    try:
        arguments = with_time_axis(q, k, v, log_decay, write)
    except RuntimeError:  # freed memory has no views
        given = {"q": q, "k": k, "v": v, "log_decay": log_decay, **write.tensors()}
        check_readable({name: x for name, x in given.items() if x is not None})
        raise
    check_call(*arguments, bonus, normalize, state, None)
    return lowered_step(*arguments, bonus, normalize, scale, state, inplace)


def with_time_axis(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, write: WriteRule
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, WriteRule]:
    """One token's arguments as those of a sequence of one token."""
    if log_decay is not None and log_decay.ndim > 1:
        log_decay = log_decay.unsqueeze(1)
    if write.entries == 1:
        k, v = k.unsqueeze(1), v.unsqueeze(1)
    return q.unsqueeze(1), k, v, log_decay, write.with_time_axis()


def lowered_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    write: WriteRule,
    bonus: Tensor | None,
    normalize: bool,
    scale: float | None,
    state: State,
    inplace: bool,
) -> Step:
    """The call of checked arguments that have a time axis."""
    return Step(lowered(q, write.lower(k, v), log_decay, bonus, normalize, scale, state), inplace)


def lower(k: Tensor, v: Tensor, write: WriteRule, cu_seqlens: Tensor | None) -> Writes:
    """The writes of a rule. Padding may hold anything: what a rule computes with is zero there, gradients included."""
    if cu_seqlens is None or (readable(cu_seqlens) and int(cu_seqlens[-1]) * write.entries == k.shape[1]):
        return write.lower(k, v)
    padding = torch.arange(k.shape[1], device=k.device) >= cu_seqlens[-1] * write.entries
    silent = partial(zero_where, padding)
    return write.map(silent).lower(silent(k), silent(v))


def lower_shapes(k: Tensor, v: Tensor, write: WriteRule) -> Writes:
    """The writes of a rule in shapes and dtypes alone, on the meta device, where nothing is computed."""
    return write.map(lambda x: x.to("meta")).lower(k.to("meta"), v.to("meta"))


def zero_where(padding: Tensor, x: Tensor) -> Tensor:
    """x [1,T,...] with zeros in the padding; what has no time axis stays as it is."""
    return x if x.ndim < 3 else x.masked_fill(padding.view(1, -1, *[1] * (x.ndim - 2)), 0)


def default_scale(scale: float | None, normalize: bool, K: int) -> float:
    if scale is None:
        return 1.0 if normalize else K**-0.5
    if isinstance(scale, Tensor):
        raise TypeError("scale must be a number, got a tensor; multiply q by it instead")
    if isinstance(scale, bool) or not isinstance(scale, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"scale must be a number, got {type(scale).__name__}")
    return float(scale)
