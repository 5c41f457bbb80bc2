"""Calls: what an operator is asked to compute, as one frozen value from the public function to the kernel.

The type of a call is the operator. A backend lists the types that it computes.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, final

import torch
from torch import Tensor

from rebracket.base.tensors import map_tensors
from rebracket.ops.state import State
from rebracket.ops.write import Sizes

Activation = Literal["silu"] | None


class Call(ABC):  # noqa: B024 - it holds what all calls share
    """One checked call of an operator: a frozen dataclass of tensors as the caller left them, and of plain values."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name, in the order of the fields."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy whose tensors went through `change`."""
        return map_tensors(self, lambda _, x: change(x))


@final
@dataclass(frozen=True, eq=False)
class Recurrence(Call):
    """A sequence through the recurrence that the whole family shares.

        S~_t = Diag(exp(log_decay_t)) S_{t-1}
        u_t  = beta_t (v_t - S~_t^T r_t)
        S_t  = S~_t + k_t u_t^T
        o_t  = scale S_t^T q_t

    With several writes a token the decay comes before its first and the read after its last. With a bonus the read is
    o_t = scale (S_{t-1}^T q_t + (q_t . (bonus * k_t)) v_t). With `normalize`, o_t is divided by q_t . z_t, and 0 where
    that is below 2^-100; z is carried as the state's key_sum.

    Args:
        q: [B,T,Hq,K].
        k: [B, T * per_token, Hq or H, K].
        v: [B, T * per_token, H, V].
        r: [B, T * per_token, Hq or H, K]; None reads nothing back, or k where `r_is_k`.
        beta: [H] or [B, T * per_token, H]; None is 1.
        log_decay: [H], [B,T,H] or [B,T,H,K]; None is 0.
        bonus: [H,K] or None.
        memory: the state on entry [N,H,K,V]; None is 0.
        key_sum: z on entry [N,H,K]; None is 0.
        cu_seqlens: offsets [N+1] of sequences packed in one row, or None.
        per_token: writes of one token.
        r_is_k: whether k itself is read back.
        normalize: whether o is divided by the sum of weights.
        scale: factor of o, without effect with `normalize`, which divides it out.
        causal: False lets every token see its whole sequence.
        chunk: tokens a chunk, 1 for one at a time, T for all at once; None leaves it to the backend.
    """

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
    r_is_k: bool
    normalize: bool
    scale: float
    causal: bool
    chunk: int | None

    @property
    def sizes(self) -> Sizes:
        """The letters of the call."""
        B, T, Hq, K = self.q.shape
        return Sizes(B, T, Hq, self.v.shape[2], K, self.v.shape[3])

    @property
    def sequences(self) -> int:
        """N: rows of the state."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def read_back(self) -> Tensor | None:
        """The key that is read before each write, if any."""
        return self.k if self.r_is_k else self.r

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic and of the state."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def state(self) -> State | None:
        """The state on entry as it was given."""
        return None if self.memory is None else State(self.memory, self.key_sum)

    def initial(self) -> State:
        """The state on entry in the dtype of the arithmetic; zeros when none was given."""
        if self.memory is not None:
            return State(self.memory, self.key_sum).to(self.dtype)
        N, (H, V), K = self.sequences, self.v.shape[2:], self.q.shape[3]
        return State.zeros(N, H, K, V, key_sum=self.normalize, dtype=self.dtype, device=self.q.device)

    def in_full_precision(self) -> Recurrence:
        """The call in the dtype of its arithmetic, for a result that is put together from rounded parts otherwise."""
        return replace(self, q=self.q.to(self.dtype), k=self.k.to(self.dtype), v=self.v.to(self.dtype))


@final
@dataclass(frozen=True, eq=False)
class Step(Call):
    """One token (T = 1) from a given state to the next, written into that state's own tensors where `inplace`."""

    token: Recurrence
    inplace: bool

    def tensors(self) -> dict[str, Tensor]:
        return self.token.tensors()


@final
@dataclass(frozen=True, eq=False)
class Convolution(Call):
    """A short causal convolution.

    y_t = act(b + sum_j w_j * e_(t + j)),  j = 0..W-1,  e being the tail, or W - 1 zeros, and then x

    Args:
        x: [B,T,D].
        weight: w, [D,W].
        bias: b, [D], or None.
        tail: the W - 1 inputs before x, [N,W-1,D]; None is 0.
        cu_seqlens: offsets [N+1] of sequences packed in one row, or None.
        activation: "silu" or None.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    tail: Tensor | None
    cu_seqlens: Tensor | None
    activation: Activation

    @property
    def sequences(self) -> int:
        """N: rows of the tail."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


@final
@dataclass(frozen=True, eq=False)
class Softmax(Call):
    """Softmax attention over a sequence, after the keys and values that a cache holds.

    o_t = sum_j w_tj v_j / sum_j w_tj,   w_tj = exp(scale q_t . k_j),   t - window < j <= t

    Args:
        q: [B,T,Hq,K].
        k: [B,T,Hk,K].
        v: [B,T,Hv,V].
        keys: those of earlier tokens, [N,L,Hk,K]; row n holds its last min(seen[n], L) at the end, after zeros that are
            never read. None where nothing came before.
        values: theirs, [N,L,Hv,V], or None.
        seen: tokens that each row has seen, [N] int64, or None.
        cu_seqlens: offsets [N+1] of sequences packed in one row, or None.
        scale: factor of the exponent.
        causal: False lets every token see its whole sequence.
        window: tokens that each token sees, itself included; None is all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    keys: Tensor | None
    values: Tensor | None
    seen: Tensor | None
    cu_seqlens: Tensor | None
    scale: float
    causal: bool
    window: int | None

    @property
    def heads(self) -> int:
        """H, the number of output heads."""
        return max(self.q.shape[2], self.k.shape[2], self.v.shape[2])

    @property
    def sequences(self) -> int:
        """N: rows of the cache."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def initial(self) -> tuple[Tensor, Tensor, Tensor]:
        """keys, values and seen of the cache; of no tokens when none was given."""
        if self.keys is not None and self.values is not None and self.seen is not None:
            return self.keys, self.values, self.seen
        N, k, v = self.sequences, self.k, self.v
        seen = torch.zeros(N, dtype=torch.int64, device=self.q.device)
        return k.new_zeros(N, 0, *k.shape[2:]), v.new_zeros(N, 0, *v.shape[2:]), seen
