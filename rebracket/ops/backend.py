"""Backends: which operators each of them computes, and which one runs a call.

An operator is a type of call. A backend lists the types that it computes; anything else it refuses with that reason.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor

from rebracket.ops.call import Call
from rebracket.ops.state import Output, State

Kind = TypeVar("Kind", bound=Call)
Tensors = Sequence[Tensor | None]
PreparedStep = Callable[[Sequence[Any], State], Output | None]
"""Runs steps that differ from the one it was made from only in the numbers of their tensors; None where it cannot."""


class Implementation(ABC, Generic[Kind]):
    """How a backend computes one type of call."""

    call: ClassVar[type[Any]]
    """The type of call."""

    @abstractmethod
    def covers(self, call: Kind) -> str | None:
        """Why this call is not computed here, or None if it is."""

    @abstractmethod
    def run(self, call: Kind) -> Any:  # noqa: ANN401 - what an operator gives depends on its type of call
        """The result of a call that is covered."""

    def settled(self, call: Kind) -> Kind:
        """The call with what its caller left to the backend filled in."""
        return call

    def prepare(self, call: Kind, given: Tensors) -> PreparedStep | None:
        """A shorter way for later calls, which come as tensors in the order of `given`; None if there is none."""
        return None


@final
@dataclass(frozen=True)
class Backend:
    """A way to compute calls.

    Args:
        name: what `backend=` calls it.
        rank: of the backends that cover a call, "auto" takes the one of the highest rank.
        operators: how it computes each type of call.
        missing: why it can compute nothing here (no kernels, no device, a library that is not installed), or None.
    """

    name: str
    rank: int
    operators: Mapping[type[Call], Implementation[Any]] = field(default_factory=dict)
    missing: str | None = None

    def covers(self, call: Call) -> str | None:
        """Why the call is not computed here, or None if it is."""
        if self.missing is not None:
            return self.missing
        if type(call) not in self.operators:
            return f"it does not compute {type(call).__name__.lower()} calls"
        return self.operators[type(call)].covers(call)

    def settled(self, call: Kind) -> Kind:
        """The call with what its caller left to the backend filled in."""
        return self.operators[type(call)].settled(call)

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """The result of a call that is covered."""
        return self.operators[type(call)].run(savable(call))

    def prepare(self, call: Call, given: Tensors) -> PreparedStep | None:
        """A shorter way for later calls, which come as tensors in the order of `given`; None if there is none."""
        return self.operators[type(call)].prepare(call, given)


def savable(call: Kind) -> Kind:
    """The call; where its gradients may be asked for, with copies of tensors that inference mode made.

    Autograd cannot save those.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return call
    tensors = call.tensors().values()
    if any(x.is_inference() for x in tensors) and any(x.requires_grad for x in tensors):
        return call.map(lambda x: x.clone() if x.is_inference() else x)
    return call


def implementations(package: str) -> dict[type[Call], Implementation[Any]]:
    """What the files of a backend's folder compute, by the type of call."""
    found = {}
    for file in sorted(Path(sys.modules[package].__path__[0]).glob("[!_]*.py")):
        module = importlib.import_module(f"{package}.{file.stem}")
        own = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
        found |= {x.call: x() for x in own if issubclass(x, Implementation)}
    return found


INSTALLED: dict[str, Backend] = {}
"""The backends by name, the best first; `rebracket.backends` fills it with one entry per folder."""


def choose(call: Call, backend: str) -> Backend:
    """The backend that was asked for, or the best that covers the call; an explicit one is obeyed or refused."""
    if backend != "auto":
        return explicit(call, backend)
    for candidate in INSTALLED.values():
        if candidate.covers(call) is None:
            return candidate
    raise ValueError("no backend covers this call: " + "; ".join(refusals(call, INSTALLED.values())))


def explicit(call: Call, name: str) -> Backend:
    if name not in INSTALLED:
        raise ValueError(f"backend must be auto or one of {', '.join(INSTALLED)}, got {name!r}")
    reason = INSTALLED[name].covers(call)
    if reason is not None:
        raise ValueError(f"backend {name!r} does not cover this call: {reason}")
    return INSTALLED[name]


def reasons(call: Call, backend: str, chosen: Backend) -> tuple[str, ...]:
    """Why `choose` took the backend it took."""
    if backend != "auto":
        return (f"backend {backend!r}: asked for",)
    better = [other for other in INSTALLED.values() if other.rank > chosen.rank]
    best = f"backend {chosen.name!r}: the best of {', '.join(INSTALLED)} that covers this call"
    return *refusals(call, better), best


def refusals(call: Call, backends: Iterable[Backend]) -> list[str]:
    return [f"not {backend.name!r}: {backend.covers(call)}" for backend in backends]
