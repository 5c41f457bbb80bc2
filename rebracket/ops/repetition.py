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

Tensors = list[Tensor | None]
"""The tensors of a step: q, k, v, log_decay, bonus, the state's memory and key_sum, and those of the write rule."""
Repeat = Callable[[Tensors, State], Output]
"""Runs a step of a known signature."""

KNOWN: dict[Hashable, Repeat] = {}
MOST = 256
"""Signatures that are kept; one more forgets them all."""


def parts(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, bonus: Tensor | None, state: State, write: WriteRule
) -> tuple[Tensors, list[object]]:
    """The tensors of a step, and the write rule's kind and fields, those that are tensors by their kind only."""
    tensors: Tensors = [q, k, v, log_decay, bonus, state.memory, state.key_sum]
    others: list[object] = [type(write)]
    for x in vars(write).values():
        if isinstance(x, Tensor):
            tensors.append(x)
        others.append(Tensor if isinstance(x, Tensor) else x)
    return tensors, others


def signature(tensors: Tensors, others: list[object]) -> Hashable | None:
    """What a step depends on besides the numbers in its tensors; None where it has to go the long way."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return None
    described = [None if x is None else (type(x), x.shape, x.stride(), x.dtype, x.device) for x in tensors]
    learned = torch.is_grad_enabled() and tuple(x is not None and x.requires_grad for x in tensors)
    return (*described, learned, *others, *map(type, others))  # 1 and True are equal, not the same


def keep(key: Hashable, repeat: Repeat | None) -> None:
    """Remembers how a signature is repeated."""
    if repeat is None:
        return
    if len(KNOWN) >= MOST:
        KNOWN.clear()
    KNOWN[key] = repeat
