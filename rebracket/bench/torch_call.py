"""Cases for whatever is a function of torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rebracket.bench.cases import Case, Inputs
from rebracket.bench.entrant import Attempt
from rebracket.bench.truth import Results, held
from rebracket.ops.state import State


def attempt(case: Case, x: Inputs, attend: Callable[[Inputs], Tensor]) -> Attempt:
    """A case in mode forward or train for a function from the inputs to out [B,T,H,D].

    Training is the forward pass and the gradients of sum(out * weight) with respect to all inputs.
    """
    if case.mode == "train":
        leaves = x.leaves()
        return Attempt(partial(train, attend, leaves), partial(trained, list(leaves.differentiated())))
    return Attempt(partial(forward, attend, x), forwarded)


def forward(attend: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
    with torch.no_grad():
        return attend(x)


def train(attend: Callable[[Inputs], Tensor], x: Inputs) -> tuple[Tensor, ...]:
    out = attend(x)
    return out.detach(), *torch.autograd.grad(out, list(x.differentiated().values()), x.weight.to(out.dtype))


def forwarded(out: object) -> Results:
    assert isinstance(out, Tensor)
    return {"out": out}


def trained(names: list[str], made: object) -> Results:
    assert isinstance(made, tuple)
    return dict(zip(["out", *(f"grad {name}" for name in names)], made, strict=True))


def decoding(step: Callable[[], tuple[Tensor, State]]) -> Attempt:
    """A decode case for a function to out, [B,H,D] or [B,1,H,D], and the state after it."""
    return Attempt(torch.no_grad()(step), decoded)


def decoded(made: object) -> Results:
    assert isinstance(made, tuple)
    out, state = made
    return {"out": out if out.ndim == 4 else out.unsqueeze(1)} | held(state)
