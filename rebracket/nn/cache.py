"""What one layer keeps of the past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, final

from torch import Tensor

from rebracket.base.tensors import SavedTensors
from rebracket.ops.softmax import KeyValues
from rebracket.ops.state import State


@final
@dataclass(frozen=True, eq=False)
class LayerCache(SavedTensors):
    """The past of one mixer for N sequences: fixed in size for linear attention, growing for softmax attention.

    Args:
        state: the operator's state of N rows.
        tail: the last inputs of the short convolution, [N,width-1,channels], oldest first, or None without one.
        seen: tokens read so far, [N] int64, for mixers that depend on positions and whose state does not count
            tokens; else None.

    Example:
        >>> import torch
        >>> cache = LayerCache(State.zeros(2, 3, 4, 5), torch.zeros(2, 3, 8))
        >>> cache.rows, cache.nbytes
        (2, 672)
    """

    kind: ClassVar[str] = "rebracket.layer_cache"
    version: ClassVar[int] = 1

    state: State | KeyValues
    tail: Tensor | None = None
    seen: Tensor | None = None

    @property
    def rows(self) -> int:
        """N, the number of sequences."""
        return next(iter(self.state.tensors().values())).shape[0]

    def check_rows(self, rows: int) -> None:
        """Raises unless there are that many sequences."""
        if self.rows != rows:
            raise ValueError(f"cache must have one row a sequence, {rows}, got {self.rows}; use cache.select(rows)")

    def overwrite(self, newer: LayerCache) -> Self:
        """This cache, with tail and counts of a newer one copied into it; the state was updated in place before."""
        for mine, theirs in ((self.tail, newer.tail), (self.seen, newer.seen)):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)
        return self

    to_tensors = SavedTensors.tensors  # what a cache has always called it

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The cache of these tensors by name.

        Raises:
            ValueError: If the names are those of no cache.
        """
        named = {name.removeprefix("state."): x for name, x in tensors.items() if name.startswith("state.")}
        kind = KeyValues if "keys" in named else State
        try:
            return cls(kind.from_tensors(named), tensors.get("tail"), tensors.get("seen"))
        except ValueError as error:
            raise ValueError(f"tensors must be those of a layer's cache, got the names {sorted(tensors)}") from error
