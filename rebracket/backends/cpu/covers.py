"""What the kernels cover of any operator: tensors on the CPU, float32 arithmetic, no forward-mode derivatives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rebracket.backends.cpu import library
from rebracket.backends.cpu.library import DTYPES
from rebracket.ops.call import Call
from rebracket.ops.native import transforms


def uncovered(call: Call, name: str, first: Tensor) -> str | None:
    """Why a call is not covered whose first tensor has this name; None if it is."""
    if first.device.type not in ("cpu", "meta"):
        return f"it runs on the CPU, and {name} is on {first.device}"
    if first.dtype not in DTYPES:
        return f"it computes in float32, and {name} is {first.dtype}"
    return no_tangent(call) or missing()


def no_tangent(call: Call) -> str | None:
    """Why a call with a forward-mode derivative is not covered, or None."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return None
    # Under a transform a tensor may hold one that has a tangent, and does not say so.
    if not transforms() and all(forward_ad.unpack_dual(x).tangent is None for x in call.tensors().values()):
        return None
    return "it has no forward-mode derivative"


def missing() -> str | None:
    """Why nothing can run here at all, or None."""
    if library.PATH is not None:
        return None
    if not torch.compiler.is_compiling():
        library.say_missing()
    return "its kernels were not built, because no C++ compiler was there at installation"
