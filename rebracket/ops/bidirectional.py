"""Attention that is not causal, from causal pieces that every backend has.

Without decay every token reads the same finished state. With decay a token reads earlier ones through a causal run,
later ones through a causal run of the flipped sequence, and itself in both, so that one copy of itself is taken away.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rebracket.ops import normalizer
from rebracket.ops.backend import Backend
from rebracket.ops.call import Recurrence
from rebracket.ops.heads import repeat_heads
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import Output, State


def check(call: Recurrence) -> None:
    """Raises for what has no meaning without an order of time."""
    if call.read_back is not None:
        raise ValueError("causal=False needs an additive write rule: an erasing one depends on the order of its writes")
    if call.bonus is not None:
        raise ValueError("causal=False has no bonus: a token already reads itself")
    if call.memory is not None:
        raise ValueError("causal=False takes no state: every token already sees the whole sequence")


def run(backend: Backend, call: Recurrence, mode: str) -> Output:
    """The whole call; the state returned is that of the forward direction."""
    exact = replace(call.in_full_precision(), causal=True)
    counted = normalizer.counted(exact) if call.normalize else exact
    with without_autocast(call.q):
        out, state = read_finished(counted) if one_pass(call, mode) else read_both_ways(backend, counted)
    out, state = normalizer.divided(out, state) if call.normalize else (out, state)
    return Output(out.to(call.q.dtype), state)


def one_pass(call: Recurrence, mode: str) -> bool:
    """Whether all tokens read one finished state, which takes no order of time: without decay, in parallel."""
    return not call.causal and call.log_decay is None and mode == "parallel"


def read_finished(call: Recurrence) -> Output:
    """O = scale Q (K^T V), one pass and no chunk."""
    sizes = call.sizes
    lengths = [sizes.T] if call.cu_seqlens is None else call.cu_seqlens.diff().tolist()
    padding = sizes.T - sum(lengths)
    # One split, not a slice for each: the gradient of a slice costs as much as the whole row.
    heads = (repeat_heads(call.q, sizes.H), repeat_heads(call.k, sizes.H), call.v)
    q, k, v = (x.split([*lengths, padding], 1)[:-1] for x in heads)
    states = [torch.einsum("bthk,bthv->bhkv", *pair) for pair in zip(k, v, strict=True)]
    out = [call.scale * torch.einsum("bthk,bhkv->bthv", *pair) for pair in zip(q, states, strict=True)]
    out.append(call.v.new_zeros(sizes.B, padding, sizes.H, sizes.V))
    empty = call.v.new_zeros(0, sizes.H, sizes.K, sizes.V)
    return Output(torch.cat(out, 1), State(torch.cat([empty, *states])))


def read_both_ways(backend: Backend, call: Recurrence) -> Output:
    """Forward plus flipped minus the token itself."""
    forward = backend.run(call)
    backward = flip(backend.run(flipped(call)).out, call.cu_seqlens)
    return Output(forward.out + backward - itself(call), forward.state)


def itself(call: Recurrence) -> Tensor:
    """What each token reads of its own pair, scale (q_t . k_t) v_t; zero in padding."""
    own = call.scale * (call.q * call.k).sum(-1, keepdim=True)
    own = repeat_heads(own, call.sizes.H) * call.v
    if call.cu_seqlens is None:
        return own
    padding = torch.arange(call.sizes.T, device=own.device) >= call.cu_seqlens[-1]
    return own.masked_fill(padding[:, None, None], 0)


def flipped(call: Recurrence) -> Recurrence:
    """The call with time reversed inside every sequence."""
    log_decay = call.log_decay
    if log_decay is not None and log_decay.ndim > 1:
        log_decay = flip(log_decay, call.cu_seqlens)
    q, k, v = (flip(x, call.cu_seqlens) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, log_decay=log_decay)


def flip(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """x [B,T,...] with time reversed inside every sequence; padding stays where it is."""
    if cu_seqlens is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    bounds = torch.cat((cu_seqlens, cu_seqlens.new_tensor([x.shape[1]])))
    n = torch.searchsorted(cu_seqlens, t, right=True)
    mirrored = bounds[n - 1] + bounds[n] - 1 - t
    return x[:, torch.where(t < cu_seqlens[-1], mirrored, t)]
