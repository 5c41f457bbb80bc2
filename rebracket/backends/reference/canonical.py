"""The call in one uniform form: one dtype, one count of heads, an entry per write, the normalizer as a value column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def split(self, cut: Callable[[Tensor], Sequence[Tensor]]) -> list[Canonical]:
        """The parts into which `cut` divides every tensor that has an entry per write."""
        timed = {name: x for name, x in vars(self).items() if isinstance(x, Tensor) and name != "bonus"}
        parts = zip(*(cut(x) for x in timed.values()), strict=True)
        return [replace(self, **dict(zip(timed, part, strict=True))) for part in parts]


def canonical(call: Recurrence) -> tuple[Canonical, Tensor]:
    """The terms of a call, [B,T,H] in front, and its state on entry [N,H,K,V]."""
    if call.normalize:
        call = normalizer.counted(call)
    dtype, H, per_token = call.dtype, call.v.shape[2], call.per_token
    q = repeat_heads(at(per_token - 1, per_token, call.q.to(dtype)), H)
    k = repeat_heads(call.k.to(dtype), H)
    # One cast for a key that is read back as well: its gradient is then rounded once, not in two parts.
    r = k if call.r_is_k else None if call.r is None else repeat_heads(call.r.to(dtype), H)
    v = call.v.to(dtype)
    beta = None if call.beta is None else call.beta.to(dtype).expand(v.shape[:3])[..., None]
    log_decay = call.log_decay
    if log_decay is not None:
        log_decay = log_decay.to(dtype)
        if log_decay.ndim < 4:
            log_decay = log_decay.expand(*call.q.shape[:2], H)[..., None]
        log_decay = at(0, per_token, log_decay)
    bonus = None if call.bonus is None else call.bonus.to(dtype)
    return Canonical(q, k, v, r, beta, log_decay, bonus, call.scale), call.initial().memory


def at(write: int, per_token: int, x: Tensor) -> Tensor:
    """x [B,T,...] as [B, T * per_token, ...]: each token's entry at one of its writes, zeros at the others."""
    if per_token == 1:
        return x
    entries = [torch.zeros_like(x)] * per_token
    entries[write] = x
    return torch.stack(entries, 2).flatten(1, 2)


def finish(call: Recurrence, out: Tensor, memory: Tensor) -> Output:
    """What the caller wants of outputs [B,T,H,V] after every write and of the last state [N,H,K,V]."""
    read = Output(out[:, call.per_token - 1 :: call.per_token], State(memory))
    out, state = normalizer.divided(*read) if call.normalize else read
    return Output(out.to(call.q.dtype), state)
