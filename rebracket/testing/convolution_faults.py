"""Planted faults of the short convolution: runs that are wrong in one way each, and the laws that must catch them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rebracket.ops.call import Convolution
from rebracket.testing.convolution import SOUND, Run


@final
@dataclass(frozen=True)
class Fault:
    """A run that is wrong, and the names of laws that it breaks."""

    run: Run
    breaks: tuple[str, ...]


def before(change: Callable[[Convolution], Convolution]) -> Run:
    """The convolution of another call."""
    return lambda call, backend: SOUND(change(call), backend)


def after(spoil: Callable[[Convolution, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Run:
    """The convolution with other results."""
    return lambda call, backend: spoil(call, *SOUND(call, backend))


def untouching(call: Convolution) -> Convolution:
    """Packed sequences as one, which begins with the first one's tail."""
    if call.cu_seqlens is None or call.tail is None:
        return call
    return replace(call, cu_seqlens=call.cu_seqlens[[0, -1]], tail=call.tail[:1])


def merged(call: Convolution, backend: str) -> tuple[Tensor, Tensor]:
    """Outputs that see the sequence packed before theirs."""
    return SOUND(untouching(call), backend)[0], SOUND(call, backend)[1]


def dense(call: Convolution) -> Convolution:
    """x read as if nothing lay between its tokens."""
    like = torch.empty(call.x.shape, device="meta")
    return replace(call, x=torch.as_strided(call.x, like.shape, like.stride(), call.x.storage_offset()))


def written(call: Convolution, y: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    call.weight.data.add_(1)  # unseen by autograd, as a kernel would
    return y, tail


FAULTS: dict[str, Fault] = {
    "the tail is forgotten": Fault(
        before(lambda call: replace(call, tail=None)), ("it_is_the_token_loop", "cutting_changes_nothing")
    ),
    "the weights are reversed": Fault(
        before(lambda call: replace(call, weight=call.weight.flip(1))), ("it_is_the_token_loop",)
    ),
    "the activation is dropped": Fault(before(lambda call: replace(call, activation=None)), ("it_is_the_token_loop",)),
    "the bias is dropped": Fault(before(lambda call: replace(call, bias=None)), ("it_is_the_token_loop",)),
    "the tail has no gradient": Fault(
        before(lambda call: call if call.tail is None else replace(call, tail=call.tail.detach())),
        ("it_is_the_token_loop", "cutting_changes_nothing"),
    ),
    "the tail that is handed on has no gradient": Fault(
        after(lambda call, y, tail: (y, tail.detach())), ("it_is_the_token_loop", "cutting_changes_nothing")
    ),
    "packed sequences touch": Fault(merged, ("it_is_the_token_loop", "packed_equals_separate")),
    "the future leaks": Fault(
        after(lambda call, y, tail: (y + 1e-3 * y.roll(-1, 1), tail)), ("it_is_the_token_loop", "future_stays_out")
    ),
    "rows meet": Fault(after(lambda call, y, tail: (y + 1e-3 * y.mean(0), tail)), ("rows_do_not_meet",)),
    "strides are ignored": Fault(before(dense), ("layouts_change_nothing",)),
    "the weight is written to": Fault(after(written), ("inputs_stay_untouched",)),
    "the tail keeps all inputs alive": Fault(
        after(lambda call, y, tail: (y, torch.cat((call.x.new_zeros(1), tail.flatten()))[1:].view_as(tail))),
        ("inputs_stay_untouched",),
    ),
    "there is noise": Fault(after(lambda call, y, tail: (y + 1e-3 * torch.rand_like(y), tail)), ("runs_repeat",)),
}
"""Each fault and laws that catch it."""
