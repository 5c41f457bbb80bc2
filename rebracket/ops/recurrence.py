"""The canonical recurrence: the one thing that every backend computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rebracket.ops.state import State
from rebracket.ops.write import Sizes, Writes


@final
@dataclass(frozen=True, eq=False)
class Recurrence:
    """One call, checked and lowered, with tensors as the caller left them (any strides, any float dtype).

        S~_t = Diag(exp(log_decay_t)) S_{t-1}
        u_t  = beta_t (v_t - S~_t^T r_t)
        S_t  = S~_t + k_t u_t^T
        o_t  = scale S_t^T q_t

    With several writes a token the decay comes before its first and the read after its last. With a bonus the read is
    o_t = scale (S_{t-1}^T q_t + (q_t . (bonus * k_t)) v_t). With `normalize`, o_t is divided by q_t . z_t, and 0 where
    that is below 2^-100; z is carried as the state's key_sum.
    """

    q: Tensor
    writes: Writes
    log_decay: Tensor | None
    bonus: Tensor | None
    normalize: bool
    scale: float
    state: State | None
    cu_seqlens: Tensor | None
    sizes: Sizes

    @property
    def sequences(self) -> int:
        """N: rows of the state."""
        return self.sizes.B if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic and of the state."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def in_full_precision(self) -> Recurrence:
        """The call in the dtype of its arithmetic, for a result that is put together from rounded parts otherwise."""
        k, v = self.writes.k.to(self.dtype), self.writes.v.to(self.dtype)
        return replace(self, q=self.q.to(self.dtype), writes=replace(self.writes, k=k, v=v))

    def initial(self) -> State:
        """The state on entry in the dtype of the arithmetic; zeros when none was given."""
        sizes = self.sizes
        if self.state is not None:
            return self.state.to(self.dtype)
        return State.zeros(
            self.sequences, sizes.H, sizes.K, sizes.V, key_sum=self.normalize, dtype=self.dtype, device=self.q.device
        )
