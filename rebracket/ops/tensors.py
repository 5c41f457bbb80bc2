"""What is a tensor of numbers that operators compute with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.masked import MaskedTensor


def check_tensor(name: str, x: object) -> None:
    """Raises unless x is a tensor that has a number at every place of its shape."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.is_nested:
        mend = "pack its sequences in one row, [1,T,...], and pass their offsets as cu_seqlens"
        raise TypeError(f"{name} must be a dense tensor, got a nested one; {mend}")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}; pass {name}.to_dense()")
    if type(x) is not Tensor and isinstance(x, MaskedTensor):
        mend = f"pass {name}.to_tensor(0), and where a token is masked a beta of 0 or a key of zeros"
        raise TypeError(f"{name} must be a dense tensor, got a masked one; {mend}")
