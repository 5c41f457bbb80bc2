"""The call in one uniform form: one dtype, one count of heads, an entry per write, the normalizer as a value column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output, State


@dataclass(frozen=True, eq=False)
class Canonical:
    """Terms of the recurrence for every write: q, k, r [B,T,H,K], v [B,T,H,V], beta [B,T,H], log_decay [B,T,H,1 or K].

    T counts writes here; with a normalizer V counts the column of ones. memory is [N,H,K,V].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    beta: Tensor | None
    log_decay: Tensor | None
    bonus: Tensor | None
    memory: Tensor
    scale: float

    def along_time(self, change: Callable[[Tensor], Tensor]) -> Canonical:
        """A copy whose tensors with a time axis went through `change`."""
        timed = {name: getattr(self, name) for name in ("q", "k", "v", "r", "beta", "log_decay")}
        return replace(self, **{name: x if x is None else change(x) for name, x in timed.items()})

    def span(self, span: slice) -> Canonical:
        """The terms of a stretch of writes."""
        return self.along_time(lambda x: x[:, span])

    def at(self, t: int) -> Canonical:
        """The terms of one write, without the time axis."""
        return self.along_time(lambda x: x[:, t])


def canonical(call: Recurrence) -> Canonical:
    """The uniform form of a call."""
    writes, dtype, H = call.writes, call.dtype, call.sizes.H
    k, r = (x if x is None else repeat_heads(x.to(dtype), H) for x in (writes.k, writes.r))
    assert k is not None
    q = repeat_heads(place(call.q.to(dtype), writes.per_token, writes.per_token - 1), H)
    v = writes.v.to(dtype)
    state = call.initial()
    memory = state.memory
    if call.normalize:
        assert state.key_sum is not None
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        memory = torch.cat((memory, state.key_sum[..., None]), -1)
    beta = None if writes.beta is None else writes.beta.to(dtype).expand(v.shape[:3])
    bonus = None if call.bonus is None else call.bonus.to(dtype)
    return Canonical(q, k, v, r, beta, log_decay(call), bonus, memory, call.scale)


def log_decay(call: Recurrence) -> Tensor | None:
    """The decay as [B,T,H,1 or K] in log space: a token's before its first write, 0 before the others."""
    if call.log_decay is None:
        return None
    x = call.log_decay.to(call.dtype)
    if x.ndim == 1:
        x = x.expand(call.sizes.B, call.sizes.T, -1)
    return place(x if x.ndim == 4 else x[..., None], call.writes.per_token, 0)


def place(x: Tensor, per_token: int, position: int) -> Tensor:
    """x [B,T,...] as [B, T * per_token, ...]: each token's entry at one position among zeros."""
    if per_token == 1:
        return x
    entries = [torch.zeros_like(x)] * per_token
    entries[position] = x
    return torch.stack(entries, 2).flatten(1, 2)


def finish(call: Recurrence, out: Tensor, memory: Tensor) -> Output:
    """Outputs [B,T,H,V(+1)] and memory [N,H,K,V(+1)] as the caller wants them."""
    dtype = call.q.dtype
    if not call.normalize:
        return Output(out.to(dtype), State(memory))
    total = out[..., -1:]
    ratio = (out[..., :-1] / total.masked_fill(total == 0, 1)).masked_fill(total == 0, 0)
    return Output(ratio.to(dtype), State(memory[..., :-1], memory[..., -1]))
