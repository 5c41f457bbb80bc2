"""The normalizer as one more value column, which always holds 1: what it recalls is the sum of the weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rebracket.ops.call import Recurrence
from rebracket.ops.state import Output, State

LEAST = 2.0**-100
"""A sum of weights that counts, in every dtype: the gradients of a division by less leave the range of float32."""


def counted(call: Recurrence) -> Recurrence:
    """The same call without its normalizer and with the column of ones; its sum of keys is the state's last column."""
    v, memory = torch.nn.functional.pad(call.v, (0, 1), value=1.0), call.memory
    if memory is not None:
        assert call.key_sum is not None
        memory = torch.cat((memory, call.key_sum[..., None]), -1)
    return replace(call, v=v, normalize=False, memory=memory, key_sum=None, scale=1.0)


def divided(out: Tensor, state: State) -> Output:
    """Sums over the last column, 0 where it is below `LEAST`, and that column of the state as the sum of keys."""
    total = out[..., -1:]
    nothing = total.abs() < LEAST
    ratio = (out[..., :-1] / total.masked_fill(nothing, 1)).masked_fill(nothing, 0)
    return Output(ratio, State(state.memory[..., :-1], state.memory[..., -1]))
