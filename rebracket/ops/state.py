"""The state: what a linear-attention layer remembers, as one value of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from rebracket.ops.files import read_tensors, write_tensors

KIND, VERSION = "rebracket.state", 1
Rows = Tensor | slice | Sequence[int]


@final
@dataclass(frozen=True, eq=False)
class State:
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

    @property
    def nbytes(self) -> int:
        """Bytes held, the same after one token and after a million."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {"memory": self.memory} | ({} if self.key_sum is None else {"key_sum": self.key_sum})

    def select(self, rows: Rows) -> Self:
        """The states of some sequences, in the given order; rows may repeat. A slice shares memory, other rows copy."""
        index = (
            rows
            if isinstance(rows, (slice, Tensor))
            else torch.tensor(rows, dtype=torch.int64, device=self.memory.device)
        )
        return type(self)(self.memory[index], None if self.key_sum is None else self.key_sum[index])

    def fork(self) -> Self:
        """A copy that goes its own way."""
        return type(self)(self.memory.clone(), None if self.key_sum is None else self.key_sum.clone())

    def overwrite(self, other: Self) -> Self:
        """This state with another one's numbers written into its tensors."""
        for mine, theirs in zip(self.tensors().values(), other.tensors().values(), strict=True):
            mine.copy_(theirs)
        return self

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """The state on another device or in another dtype."""
        return type(self)(self.memory.to(target), None if self.key_sum is None else self.key_sum.to(target))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the state to a file, beside it and renamed, so that a crash leaves the old file whole."""
        write_tensors(path, self.tensors(), KIND, VERSION, {})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a state that `save` wrote; a damaged or foreign file is a ValueError."""
        tensors, _ = read_tensors(path, KIND, VERSION)
        if "memory" not in tensors:
            raise ValueError(f"{path}: expected a state with its memory, found {sorted(tensors)}")
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
