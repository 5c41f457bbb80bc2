"""Values made of tensors: frozen dataclasses whose tensors have names, and copies of them with other tensors."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from rebracket.base.files import read_tensors, write_tensors

Value = TypeVar("Value")
Rows = Tensor | slice | int | Sequence[int] | Sequence[bool]
"""Some rows: their numbers, the number of one, a mask over all of them, or a slice."""


def named_tensors(value: Any) -> dict[str, Tensor]:  # noqa: ANN401 - any dataclass
    """The tensors of a dataclass by name, those of a value in it behind its name, of a tuple's behind their number.

    Example:
        >>> @dataclasses.dataclass
        ... class Pair:
        ...     x: Tensor
        ...     inner: object
        >>> list(named_tensors(Pair(torch.zeros(1), Pair(torch.zeros(1), None))))
        ['x', 'inner.x']
    """
    return dict(walk(value, ""))


def walk(value: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:  # noqa: ANN401
    for field in dataclasses.fields(value):
        x = getattr(value, field.name)
        if isinstance(x, Tensor):
            yield prefix + field.name, x
        elif dataclasses.is_dataclass(x):
            yield from walk(x, f"{prefix}{field.name}.")
        elif isinstance(x, tuple):
            for i, member in enumerate(x):
                yield from walk(member, f"{prefix}{i}.") if dataclasses.is_dataclass(member) else ()


def map_tensors(value: Value, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Value:
    """A copy of a dataclass whose tensors went through `change`, which is told their names."""
    changed = {}
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        x = getattr(value, field.name)
        if isinstance(x, Tensor):
            changed[field.name] = change(prefix + field.name, x)
        elif dataclasses.is_dataclass(x):
            changed[field.name] = map_tensors(x, change, f"{prefix}{field.name}.")
        elif isinstance(x, tuple):
            changed[field.name] = tuple(
                map_tensors(member, change, f"{prefix}{i}.") if dataclasses.is_dataclass(member) else member
                for i, member in enumerate(x)
            )
    return dataclasses.replace(value, **changed)  # type: ignore[type-var]


class HeldTensors(ABC):
    """A frozen dataclass of tensors whose first axis is the rows: N sequences, held, forked, chosen from and moved."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return named_tensors(self)

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The value whose `tensors` these are; a ValueError where the names are those of no such value."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def fork(self) -> Self:
        """A copy that goes its own way."""
        return map_tensors(self, lambda _, x: x.clone())

    def select(self, rows: Rows) -> Self:
        """Some rows in the given order, by number (they may repeat), by a mask over all, or by a slice.

        One number is one row, whose axis stays. A slice shares memory, other rows are copied.
        """
        return map_tensors(self, lambda _, x: x[index(rows, x)])

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """The same on another device or in another dtype; counts stay whole numbers."""
        fixed = isinstance(target, torch.dtype)
        return map_tensors(self, lambda _, x: x if fixed and not x.is_floating_point() else x.to(target))


class SavedTensors(HeldTensors, ABC):
    """Held tensors that are a file of their own."""

    kind: ClassVar[str]
    version: ClassVar[int]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file, beside it and renamed, so that a crash leaves the old file whole."""
        write_tensors(path, self.tensors(), self.kind, self.version, {})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads what `save` wrote; a damaged or foreign file is a ValueError."""
        tensors, _ = read_tensors(path, cls.kind, cls.version)
        try:
            return cls.from_tensors(tensors)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def index(rows: Rows, x: Tensor) -> Tensor | slice:
    """Rows as what a tensor is indexed by."""
    if isinstance(rows, slice):
        return rows
    found = torch.as_tensor(rows, device=x.device)
    if found.ndim == 0 and found.dtype != torch.bool:
        found = found[None]
    if found.ndim != 1:
        raise ValueError(f"rows must be a list [n] of numbers or a mask, got {found.ndim} axes; one row is [row]")
    if found.dtype == torch.bool:
        if len(found) != len(x):
            raise ValueError(f"rows must be a mask over all {len(x)} rows, got one over {len(found)}")
        return found.nonzero().squeeze(1)
    if found.is_floating_point() and len(found):
        raise TypeError(f"rows must be whole numbers or a mask, got {found.dtype}")
    return found.to(torch.int64)
