"""The call in one uniform form: one dtype, one count of heads, an entry per write, the normalizer as a value column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rebracket.ops import normalizer
from rebracket.ops.call import Recurrence
from rebracket.ops.heads import repeat_heads
from rebracket.ops.state import Output, State


@final
@dataclass(frozen=True, eq=False)
class Canonical:
    """Terms of the recurrence, one entry per write, with the same leading axes in all.

    q, k, r [..., K], v [..., V], beta [..., 1], log_decay [..., 1 or K]; bonus [H,K]. The leading axes are [B,T,H], or
    [M,H,C] once cut into chunks. T counts writes; with a normalizer V counts the column of ones.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    beta: Tensor | None
    log_decay: Tensor | None
    bonus: Tensor | None
    scale: float

    def timed(self) -> dict[str, Tensor]:
        """The tensors that have one entry per write, by name."""
        named = {name: getattr(self, name) for name in ("q", "k", "v", "r", "beta", "log_decay")}
        return {name: x for name, x in named.items() if x is not None}

    def each(self, change: Callable[[Tensor], Tensor]) -> Canonical:
        """A copy whose timed tensors went through `change`."""
        return replace(self, **{name: change(x) for name, x in self.timed().items()})

    def pieces(self, sizes: list[int]) -> list[Canonical]:
        """Cut along the first axis. One split, because a slice per piece costs a full-sized gradient each."""
        parts = {name: x.split(sizes) for name, x in self.timed().items()}
        return [replace(self, **{name: part[i] for name, part in parts.items()}) for i in range(len(sizes))]


def canonical(call: Recurrence) -> Canonical:
    """The uniform form of a call, [B,T,H] in front."""
    dtype, H = call.dtype, call.v.shape[2]
    q = repeat_heads(place(call.q.to(dtype), call.per_token, call.per_token - 1), H)
    k = repeat_heads(call.k.to(dtype), H)
    # One cast for a key that is read back as well: its gradient is then rounded once, not in two parts.
    r = k if call.r_is_k else None if call.r is None else repeat_heads(call.r.to(dtype), H)
    v = call.v.to(dtype)
    beta = None if call.beta is None else call.beta.to(dtype).expand(v.shape[:3])[..., None]
    if call.normalize:
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
    bonus = None if call.bonus is None else call.bonus.to(dtype)
    return Canonical(q, k, v, r, beta, log_decay(call), bonus, call.scale)


def initial_memory(call: Recurrence) -> Tensor:
    """The state on entry [N,H,K,V], the sum of keys as its last column when there is a normalizer."""
    state = call.initial()
    return normalizer.with_column(state) if call.normalize else state.memory


def log_decay(call: Recurrence) -> Tensor | None:
    """The decay as [B,T,H,1 or K] in log space: a token's before its first write, 0 before the others."""
    if call.log_decay is None:
        return None
    x = call.log_decay.to(call.dtype)
    if x.ndim == 1:
        x = x.expand(call.sizes.B, call.sizes.T, -1)
    return place(x if x.ndim == 4 else x[..., None], call.per_token, 0)


def place(x: Tensor, per_token: int, position: int) -> Tensor:
    """x [B,T,...] as [B, T * per_token, ...]: each token's entry at one position among zeros."""
    if per_token == 1:
        return x
    entries = [torch.zeros_like(x)] * per_token
    entries[position] = x
    return torch.stack(entries, 2).flatten(1, 2)


def finish(call: Recurrence, out: Tensor, memory: Tensor) -> Output:
    """Outputs [B,T,H,V(+1)] and memory [N,H,K,V(+1)] as the caller wants them."""
    out, state = normalizer.divided(out, State(memory)) if call.normalize else (out, State(memory))
    return Output(out.to(call.q.dtype), state)
