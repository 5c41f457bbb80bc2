"""Peak memory, counted: the bytes of all tensors that a function holds at once, exact and the same every time."""
# ruff: noqa: ANN401  (a dispatch mode sees the arguments of every operation)

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@final
class Tally(TorchDispatchMode):
    """Counts the bytes of the storages that operations make while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.total, self.peak = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        for storage in storages((args, kwargs)):
            self.hold(storage, 0)
        out = func(*args, **(kwargs or {}))
        for storage in storages(out):
            self.hold(storage, storage.nbytes())
        return out

    def hold(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Counts a storage when it is first seen; one that comes in as an argument was made before and is free."""
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = nbytes
        self.total += nbytes
        self.peak = max(self.peak, self.total)
        weakref.finalize(storage, self.release, key)

    def release(self, key: int) -> None:
        self.total -= self.live.pop(key)


def storages(tree: object) -> list[torch.UntypedStorage]:
    """The storages of all tensors in nested arguments or results."""
    return [x.untyped_storage() for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def peak_tensor_nbytes(run: Callable[[], object]) -> int:
    """The most bytes that tensors made by `run` held at one time; what it was given is not counted.

    Cost: the run itself, with a Python call at every operation.

    Example:
        >>> import torch
        >>> from rebracket.testing.memory import peak_tensor_nbytes
        >>> peak_tensor_nbytes(lambda: (torch.zeros(100) + 1).sum())
        800
    """
    with Tally() as tally:
        run()
    return tally.peak
