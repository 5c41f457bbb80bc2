"""What one layer keeps of the past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Self, final

import torch
from torch import Tensor

from rebracket.ops.files import read_tensors, write_tensors
from rebracket.ops.softmax import KeyValues
from rebracket.ops.state import Rows, State

KIND, VERSION = "rebracket.layer_cache", 1
STATES: tuple[type[State] | type[KeyValues], ...] = (State, KeyValues)


@final
@dataclass(frozen=True, eq=False)
class LayerCache:
    """The past of one mixer for N sequences: fixed in size for linear attention, growing for softmax attention.

    Args:
        state: the operator's state of N rows.
        tail: the last inputs of the short convolution, [N,width-1,channels], oldest first, or None without one.
        seen: tokens read so far, [N] int64, for mixers that turn their keys by position and whose state does not
            count; else None.

    Example:
        >>> cache = LayerCache(State.zeros(2, 3, 4, 5), torch.zeros(2, 3, 8))
        >>> cache.rows, cache.nbytes
        (2, 672)
    """

    state: State | KeyValues
    tail: Tensor | None = None
    seen: Tensor | None = None

    @property
    def rows(self) -> int:
        """N, the number of sequences."""
        return next(iter(self.state.tensors().values())).shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in self.to_tensors().values())

    def refuse_rows(self, rows: int) -> None:
        """Raises unless there are that many sequences."""
        if self.rows != rows:
            raise ValueError(f"cache must have one row a sequence, {rows}, got {self.rows}; use cache.select(rows)")

    def fork(self) -> Self:
        """A copy that goes its own way."""
        return type(self)(self.state.fork(), clone(self.tail), clone(self.seen))

    def select(self, rows: Rows) -> Self:
        """The caches of some sequences, in the given order; rows may repeat. A slice shares memory, other rows copy."""
        return type(self)(self.state.select(rows), take(self.tail, rows), take(self.seen, rows))

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """The cache on another device or in another dtype; counts stay whole numbers."""
        tail, seen = self.tail, self.seen
        if seen is not None and not isinstance(target, torch.dtype):
            seen = seen.to(target)
        return type(self)(self.state.to(target), None if tail is None else tail.to(target), seen)

    def overwrite(self, newer: LayerCache) -> Self:
        """This cache with the tail and counts of a newer one written into its own; the state must be done already."""
        for mine, theirs in ((self.tail, newer.tail), (self.seen, newer.seen)):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)
        return self

    def to_tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        named = {f"state.{name}": x for name, x in self.state.tensors().items()}
        parts = {"tail": self.tail, "seen": self.seen}
        return named | {name: x for name, x in parts.items() if x is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The cache whose `to_tensors` these are.

        Raises:
            ValueError: If the names are those of no cache.
        """
        return cls(state_of(tensors), tensors.get("tail"), tensors.get("seen"))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the cache to one file, whole or not at all."""
        write_tensors(path, self.to_tensors(), KIND, VERSION, {})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads what `save` wrote; a damaged or foreign file is a ValueError."""
        return cls.from_tensors(read_tensors(path, KIND, VERSION)[0])


def clone(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.clone()


def take(x: Tensor | None, rows: Rows) -> Tensor | None:
    if x is None:
        return None
    return x[rows if isinstance(rows, (slice, Tensor)) else torch.as_tensor(rows, device=x.device)]


def state_of(tensors: Mapping[str, Tensor]) -> State | KeyValues:
    """The state among a cache's tensors, told by its names."""
    named = {name.removeprefix("state."): x for name, x in tensors.items() if name.startswith("state.")}
    if {"memory"} <= named.keys() <= {"memory", "key_sum"}:
        return State(named["memory"], named.get("key_sum"))
    if named.keys() == {"keys", "values", "seen"}:
        return KeyValues(named["keys"], named["values"], named["seen"])
    raise ValueError(f"tensors must be those of a layer's cache, got the names {sorted(tensors)}")
