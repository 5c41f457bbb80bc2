"""What the kernels cover of any operator: tensors on the CPU, float32 arithmetic, no forward-mode derivatives."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rebracket.backends.cpu import library
from rebracket.backends.cpu.library import DTYPES


def uncovered(name: str, tensors: Collection[Tensor]) -> str | None:
    """Why tensors are not covered, the first of them being called `name`; None if they are."""
    first = next(iter(tensors))
    if first.device.type not in ("cpu", "meta"):
        return f"it runs on the CPU, and {name} is on {first.device}"
    if first.dtype not in DTYPES:
        return f"it computes in float32, and {name} is {first.dtype}"
    return no_tangent(tensors) or missing()


def no_tangent(tensors: Collection[Tensor]) -> str | None:
    """Why tensors with a forward-mode derivative are not covered, or None."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return None
    if all(forward_ad.unpack_dual(x).tangent is None for x in tensors):
        return None
    return "it has no forward-mode derivative"


def missing() -> str | None:
    """Why nothing can run here at all, or None."""
    if library.PATH is not None:
        return None
    if not torch.compiler.is_compiling():
        library.say_missing()
    return "its kernels were not built, because no C++ compiler was there at installation"
