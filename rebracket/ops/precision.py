"""The precision of the arithmetic: short numbers are computed in float32, and autocast stays outside."""

from contextlib import nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x itself, or x in float32 when its numbers are shorter."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x: Tensor) -> torch.autocast | nullcontext[None]:
    """A context in which torch does not round x before a product with it; costs nothing where it would not anyway."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
