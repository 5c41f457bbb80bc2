"""The cache of a language model: all that it keeps of the tokens it has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Self, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.base.files import read_tensors, write_tensors
from rebracket.base.tensors import HeldTensors
from rebracket.nn.cache import LayerCache

KIND, VERSION = "rebracket.model_cache", 1
MODEL = "model"


@final
@dataclass(frozen=True, eq=False)
class ModelCache(HeldTensors):
    """The caches of all layers of a model for N sequences.

    Args:
        layers: one cache a layer, first layer first, all with N rows.

    Example:
        >>> from rebracket.ops.state import State
        >>> cache = ModelCache((LayerCache(State.zeros(2, 3, 4, 5)),))
        >>> cache.rows, cache.select([1]).rows
        (2, 1)
    """

    layers: tuple[LayerCache, ...]

    @property
    def rows(self) -> int:
        """N, the number of sequences."""
        return self.layers[0].rows

    to_tensors = HeldTensors.tensors  # what a cache has always called it

    @classmethod
    def join(cls, caches: Iterable[Self]) -> Self:
        """The rows of several caches of one model in one; shorter keys and values are padded in front."""
        named = [cache.tensors() for cache in caches]
        return cls.from_tensors({name: stacked([tensors[name] for tensors in named]) for name in named[0]})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The cache whose `tensors` these are; a ValueError if they are those of no cache."""
        count = len({name.partition(".")[0] for name in tensors})
        return cls(tuple(LayerCache.from_tensors(below(tensors, f"{i}.")) for i in range(count)))

    def save(self, path: str | PathLike[str], model_id: str) -> None:
        """Writes the cache to one file, whole or not at all, with the `model_id` of the model it belongs to."""
        write_tensors(path, self.tensors(), KIND, VERSION, {MODEL: model_id})

    @classmethod
    def load(cls, path: str | PathLike[str], model_id: str) -> Self:
        """Reads what `save` wrote.

        Args:
            path: the file.
            model_id: `model_id` of the model that is to continue from the cache.

        Raises:
            ValueError: If the file is damaged or foreign, or its cache is of another model.
        """
        tensors, extra = read_tensors(path, KIND, VERSION)
        if extra.get(MODEL) != model_id:
            raise ValueError(f"{path}: state from another model: it was made by {extra.get(MODEL)}, this is {model_id}")
        return cls.from_tensors(tensors)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Parts [N,L,...] in one [sum of N, largest L, ...]; only keys and values differ in L."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    L = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, [0, 0] * (part.ndim - 2) + [L - part.shape[1], 0]) for part in parts])
