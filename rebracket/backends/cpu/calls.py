"""Calls of the kernels on tensors: forward, backward and one token, without autograd."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rebracket.backends.cpu.library import DTYPES, Call, Gradients, Library, empty, rows
from rebracket.ops.validate import check_decay_values

SEGMENT = 128
"""Writes between two states that the forward pass keeps for the backward pass."""


@final
@dataclass(frozen=True, eq=False)
class Terms:
    """A call of the recurrence, tensors only where they exist; layouts as in `rebracket.ops.recurrence`."""

    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    beta: Tensor | None
    log_decay: Tensor | None
    bonus: Tensor | None
    memory: Tensor | None
    key_sum: Tensor | None
    cu_seqlens: Tensor | None
    per_token: int
    normalize: bool
    scale: float

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What may have a gradient, in the order of the fields."""
        return self.q, self.k, self.v, self.r, self.beta, self.log_decay, self.bonus, self.memory, self.key_sum

    @property
    def sequences(self) -> int:
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def readable(self) -> Terms:
        """The same call in tensors that the kernels can read in place; only what they cannot is copied."""
        B, T, H = self.q.shape[0], self.q.shape[1], self.v.shape[2]
        return replace(
            self,
            q=contiguous_rows(self.q),
            k=contiguous_rows(self.k),
            v=contiguous_rows(self.v),
            r=None if self.r is None else contiguous_rows(self.r),
            beta=None if self.beta is None else known(self.beta).expand(B, T * self.per_token, H),
            log_decay=self.readable_decay(),
            bonus=None if self.bonus is None else self.bonus.float().contiguous(),
            memory=None if self.memory is None else self.memory.float().contiguous(),
            key_sum=None if self.key_sum is None else self.key_sum.float().contiguous(),
            cu_seqlens=None if self.cu_seqlens is None else self.cu_seqlens.to(torch.int64).contiguous(),
        )

    def readable_decay(self) -> Tensor | None:
        if self.log_decay is None:
            return None
        if self.log_decay.ndim == 4:
            return contiguous_rows(self.log_decay)
        return known(self.log_decay).expand(self.q.shape[0], self.q.shape[1], self.v.shape[2])

    def first_segments(self) -> Tensor:
        """Where the kept states of every sequence begin, and in the end how many there are."""
        if self.cu_seqlens is None:
            lengths = torch.full((self.q.shape[0],), self.q.shape[1] * self.per_token, device="cpu")
        else:
            lengths = self.cu_seqlens.diff() * self.per_token
        segments = (lengths + SEGMENT - 1) // SEGMENT
        return torch.cat((segments.new_zeros(1), segments.cumsum(0)))


def known(x: Tensor) -> Tensor:
    return x if x.dtype in DTYPES else x.float()


def contiguous_rows(x: Tensor) -> Tensor:
    """x with its last axis contiguous."""
    x = known(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def describe(terms: Terms, out: Tensor, memory: Tensor, key_sum: Tensor | None, wrong: Tensor) -> Call:
    """The structure of a readable call."""
    B, T, _, K = terms.q.shape
    H, V = terms.v.shape[2:]
    log_decay = terms.log_decay
    call = Call(B, T, H, K, V, terms.sequences, terms.per_token, 1)
    call.decay = 0 if log_decay is None else log_decay.ndim - 1
    call.normalize, call.scale = terms.normalize, terms.scale
    for name in ("q", "k", "v", "r", "beta", "log_decay"):
        setattr(call, name, rows(getattr(terms, name)))
    call.out, call.bonus, call.offsets = rows(out), pointer(terms.bonus), pointer(terms.cu_seqlens)
    call.memory_in, call.key_sum_in = pointer(terms.memory), pointer(terms.key_sum)
    call.memory_out, call.key_sum_out, call.wrong = pointer(memory), pointer(key_sum), pointer(wrong)
    return call


def blank(terms: Terms, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a result over all tokens or writes, zero beyond the last packed sequence."""
    x = empty(*shape, dtype=dtype)
    if terms.cu_seqlens is not None and shape[1]:
        x[:, int(terms.cu_seqlens[-1]) * shape[1] // terms.q.shape[1] :].zero_()
    return x


def flag() -> Tensor:
    """What the kernels set to 1 where a decay is positive or NaN."""
    return torch.zeros(1, dtype=torch.int32, device="cpu")


def check_decays(terms: Terms, wrong: Tensor) -> None:
    """The kernels saw a decay that is positive or NaN: say which."""
    if not wrong.item() or terms.log_decay is None:
        return
    tail = None if terms.cu_seqlens is None else int(terms.cu_seqlens[-1])
    check_decay_values(terms.log_decay[:, :tail])


def forward(terms: Terms, library: Library, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, memory, sum of keys and the states kept for the backward pass (the last two empty where not wanted)."""
    terms = terms.readable()
    B, T, _, K = terms.q.shape
    H, V = terms.v.shape[2:]
    N = terms.sequences
    out = blank(terms, (B, T, H, V), terms.q.dtype)
    memory, key_sum, wrong = empty(N, H, K, V), empty(N, H, K) if terms.normalize else empty(0), flag()
    call = describe(terms, out, memory, key_sum, wrong)
    call.slices = slices(N * H, V)
    first = terms.first_segments() if keep else torch.zeros(1, dtype=torch.int64, device="cpu")
    entries = empty(int(first[-1]), H, K * (V + terms.normalize))
    if keep:
        call.entries, call.first_segment, call.segments = pointer(entries), pointer(first), len(entries)
    library.forward(call)
    check_decays(terms, wrong)
    return out, memory, key_sum, entries


def slices(units: int, V: int) -> int:
    """Into how many slices of value columns a head is cut, so that every thread has work."""
    wanted = min(-(-torch.get_num_threads() // max(units, 1)), V // 16)
    width = 16 * -(-V // (16 * max(wanted, 1)))
    return -(-V // width)


def in_pieces(terms: Terms, first: Tensor) -> bool:
    """Whether the segments of a head go back at once: 1.6 times the work, so with many threads; and none empty."""
    heads = terms.sequences * terms.v.shape[2]
    summed = terms.normalize or terms.bonus is not None  # over all segments, one after the other
    return torch.get_num_threads() > 2 * heads and not summed and bool((first.diff() > 0).all())


def backward(
    terms: Terms,
    library: Library,
    entries: Tensor,
    grad_out: Tensor,
    grad_memory: Tensor | None,
    grad_key_sum: Tensor | None,
    r_is_k: bool = False,
) -> list[Tensor | None]:
    """Gradients of the call's tensors up to `key_sum`, in their shapes.

    Where r is the very tensor k, its gradient may be asked for as a part of that of k.
    """
    given, terms = terms, terms.readable()
    B, T, _, K = terms.q.shape
    H, V = terms.v.shape[2:]
    writes, N = T * terms.per_token, terms.sequences
    memory, first, wrong = empty(N, H, K, V), terms.first_segments(), flag()
    key_sum = empty(N, H, K) if terms.normalize else None
    call = describe(terms, grad_out, memory, key_sum, wrong)
    call.entries, call.first_segment, call.segments = pointer(entries), pointer(first), len(entries)
    carries = empty(len(entries), H, K, V) if in_pieces(terms, first) else None
    call.carries, call.slices = pointer(carries), 1 if carries is None else slices(N * H, V)
    made = {
        "q": blank(terms, (B, T, H, K), given.q.dtype),
        "k": blank(terms, (B, writes, H, K), given.k.dtype),
        "v": blank(terms, (B, writes, H, V), given.v.dtype),
        "r": None if terms.r is None or r_is_k else blank(terms, (B, writes, H, K), terms.r.dtype),
        "beta": None if terms.beta is None else blank(terms, (B, writes, H), torch.float32),
        "log_decay": None if terms.log_decay is None else blank(terms, tuple(terms.log_decay.shape), torch.float32),
    }
    bonus = None if terms.bonus is None else empty(N, H, K)
    grad_out = contiguous_rows(grad_out)  # a pointer into it must not outlive it, so it keeps its name
    grad_memory = None if grad_memory is None else grad_memory.float().contiguous()
    grad_key_sum = None if grad_key_sum is None or not terms.normalize else grad_key_sum.float().contiguous()
    gradients = Gradients(rows(grad_out), *(rows(x) for x in made.values()))
    gradients.memory_out, gradients.key_sum_out = pointer(grad_memory), pointer(grad_key_sum)
    gradients.memory_in, gradients.key_sum_in, gradients.bonus = pointer(memory), pointer(key_sum), pointer(bonus)
    library.backward(call, gradients)
    found = [*made.values(), None if bonus is None else bonus.sum(0), memory, key_sum]
    wanted = given.tensors
    return [None if x is None or like is None else shaped(x, like) for x, like in zip(found, wanted, strict=True)]


def shaped(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient in the shape and dtype of its tensor: summed over grouped heads, or over batch and time for [H]."""
    if like.ndim == 1:
        grad = grad.sum((0, 1))
    elif like.ndim >= 3 and grad.ndim == like.ndim and grad.shape[2] != like.shape[2]:
        grad = grad.unflatten(2, (like.shape[2], -1)).sum(3)
    return grad.to(like.dtype)


def step(terms: Terms, library: Library, memory: Tensor, key_sum: Tensor | None) -> Tensor:
    """One token, the new state written to `memory` and `key_sum`, which may be the old one's own tensors."""
    terms = terms.readable()
    B, _, H, V = terms.v.shape
    out, wrong = empty(B, 1, H, V, dtype=terms.q.dtype), flag()
    library.step(describe(terms, out, memory, key_sum, wrong))
    check_decays(terms, wrong)
    return out
