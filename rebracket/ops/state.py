"""The state: what a linear-attention layer remembers, as one value of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from rebracket.base.tensors import SavedTensors


@final
@dataclass(frozen=True, eq=False)
class State(SavedTensors):
    """The memory S of every sequence and head, and the sum of keys z that a normalizer needs.

    S_t = Diag(a_t) S_{t-1} + ...,   z_t = Diag(a_t) z_{t-1} + k_t

    Args:
        memory: S, [N,H,K,V], float32 (float64 for float64 inputs); N is B, or the number of packed sequences.
        key_sum: z, [N,H,K] of the same dtype, or None without a normalizer.

    Cost: 4 H K (V + 1) bytes a sequence at most in float32, after one token and after a million.

    Source: Schmidhuber 1992 (fast weights); Katharopoulos et al. 2020.

    Example:
        >>> import torch, rebracket as rb
        >>> state = rb.State.zeros(2, 3, 4, 5)
        >>> state.nbytes
        480
        >>> branch = state.fork()
        >>> state.select([1]).memory.shape
        torch.Size([1, 3, 4, 5])
    """

    kind: ClassVar[str] = "rebracket.state"
    version: ClassVar[int] = 1

    memory: Tensor
    key_sum: Tensor | None = None

    @classmethod
    def zeros(
        cls,
        N: int,
        H: int,
        K: int,
        V: int,
        *,
        key_sum: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        """An empty state for N sequences."""
        zeros = torch.zeros(N, H, K, V + key_sum, dtype=dtype, device=device)
        return cls(zeros[..., :V].contiguous(), zeros[..., V].contiguous() if key_sum else None)

    def overwrite(self, other: Self) -> Self:
        """This state with another one's numbers written into its tensors."""
        for mine, theirs in zip(self.tensors().values(), other.tensors().values(), strict=True):
            mine.copy_(theirs)
        return self

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state of these tensors by name."""
        if not {"memory"} <= tensors.keys() <= {"memory", "key_sum"}:
            raise ValueError(f"expected a state with its memory, found {sorted(tensors)}")
        return cls(tensors["memory"], tensors.get("key_sum"))


class Output(NamedTuple):
    """What every operator returns.

    Args:
        out: [B,T,H,V], from `step` [B,H,V], in the dtype of v.
        state: the state after the last token.

    Example:
        >>> import torch, rebracket as rb
        >>> out, state = rb.linear_attention(*torch.randn(3, 1, 6, 2, 4))
    """

    out: Tensor
    state: State
