"""Steps that repeat, and what need not be done again.

In generation one token follows the other with the same shapes. What a step was checked and lowered for is kept by the
signature of the call, and the next one with that signature changes nothing but the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rebracket.ops.state import Output, State
from rebracket.ops.write import WriteRule

Tensors = tuple[Tensor | None, ...]
"""The tensors of a step: q, k, v, log_decay, bonus, the state's memory and key_sum, and those of the write rule."""
Repeat = Callable[[Tensors, State], Output]
"""Runs a step of a known signature."""

KNOWN: dict[Hashable, Repeat] = {}
MOST = 256
"""Signatures that are kept; one more forgets them all."""


def parts(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, bonus: Tensor | None, state: State, write: WriteRule
) -> tuple[Tensors, tuple[object, ...]]:
    """The tensors of a step, and what else the write rule holds."""
    held = vars(write).values()
    own = tuple(x for x in held if isinstance(x, Tensor))
    others = tuple(x for x in held if not isinstance(x, Tensor))
    return (q, k, v, log_decay, bonus, state.memory, state.key_sum, *own), (type(write), *others)


def signature(tensors: Tensors, others: tuple[object, ...]) -> Hashable | None:
    """What a step depends on besides the numbers in its tensors; None where it has to go the long way."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return None
    described = [
        None if x is None else (type(x), x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors
    ]
    return (*described, torch.is_grad_enabled(), *others, *map(type, others))  # 1 and True are equal, not the same


def keep(key: Hashable, repeat: Repeat | None) -> None:
    """Remembers how a signature is repeated."""
    if repeat is None:
        return
    if len(KNOWN) >= MOST:
        KNOWN.clear()
    KNOWN[key] = repeat
