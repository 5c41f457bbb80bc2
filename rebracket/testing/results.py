"""Everything that a call gives: outputs, state, and the gradient of every input against fixed random cotangents."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from rebracket.backends.reference import definition
from rebracket.ops.state import Output
from rebracket.testing.rows import recurrence
from rebracket.testing.samples import Case, Sample, draw

Run = Callable[[Sample], Output]


def results(run: Run, sample: Sample, names: frozenset[str] | None = None) -> dict[str, Tensor]:
    """Results of a run by name: "out", "state.memory", "grad q", ...; gradients of all inputs or of those named."""
    leaves = sample.leaves(names)
    found = values(run(leaves))
    loss(found).backward()
    wanted = {name: x for name, x in leaves.tensors().items() if x.requires_grad}
    grads = {f"grad {name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in wanted.items()}
    return {name: x.detach() for name, x in found.items()} | grads


def values(output: Output) -> dict[str, Tensor]:
    """Outputs and state by name."""
    return {"out": output.out} | {f"state.{name}": x for name, x in output.state.tensors().items()}


def loss(found: dict[str, Tensor]) -> Tensor:
    """A number that depends on every output and state entry with a weight of its own."""
    nothing = torch.zeros((), dtype=torch.float64)
    total = sum(((x.double() * cotangent(name, x)).sum() for name, x in found.items()), nothing)
    if not total.requires_grad:
        raise AssertionError("no gradient: outputs and state came back detached")
    return total


def cotangent(name: str, x: Tensor) -> Tensor:
    """Fixed random weights that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).bfloat16().double()


def define(sample: Sample) -> Output:
    """The token loop that is the specification."""
    return definition.run(recurrence(sample))


@functools.cache
def exact(case: Case) -> dict[str, Tensor]:
    """The results of the token loop in float64 on the inputs of a case, which may be rounded ones."""
    return results(define, draw(case).to(torch.float64))
