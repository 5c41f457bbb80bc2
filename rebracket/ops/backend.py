"""What a backend is, and how the installed ones are found: one folder each under `rebracket/backends`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import ClassVar

from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output

FOLDER = "rebracket.backends"


class Backend(ABC):
    """Computes the canonical recurrence, or says why it does not."""

    name: ClassVar[str]
    rank: ClassVar[int]
    """Of the backends that accept a call, "auto" takes the one of the highest rank."""
    chunk: ClassVar[int]
    """The chunk in tokens when the caller names none."""

    @abstractmethod
    def refusal(self, call: Recurrence) -> str | None:
        """Why this call is not covered, or None."""

    @abstractmethod
    def run(self, call: Recurrence, chunk: int) -> Output:
        """The whole sequence in chunks of `chunk` tokens: 1 is recurrent, T or more is parallel."""

    @abstractmethod
    def step(self, call: Recurrence, inplace: bool) -> Output:
        """One token (T = 1) from a given state, written into that state when `inplace`."""


@functools.cache
def names() -> tuple[str, ...]:
    """The backends in this installation, the best first."""
    folder = importlib.import_module(FOLDER)
    found = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    return tuple(sorted(found, key=lambda name: -find(name).rank))


@functools.cache
def find(name: str) -> Backend:
    """The backend of that name."""
    return importlib.import_module(f"{FOLDER}.{name}").BACKEND


def choose(call: Recurrence, backend: str) -> tuple[Backend, tuple[str, ...]]:
    """The backend to run and the reasons; an explicit one is obeyed or refused."""
    if backend != "auto":
        return explicit(call, backend), (f"backend {backend!r}: asked for",)
    reasons: list[str] = []
    for name in names():
        refusal = find(name).refusal(call)
        if refusal is None:
            return find(name), (*reasons, f"backend {name!r}: the first of {', '.join(names())} that covers this call")
        reasons.append(f"not {name!r}: {refusal}")
    raise ValueError("no backend covers this call: " + "; ".join(reasons))


def explicit(call: Recurrence, name: str) -> Backend:
    if name not in names():
        raise ValueError(f"backend must be auto or one of {', '.join(names())}, got {name!r}")
    refusal = find(name).refusal(call)
    if refusal is not None:
        raise ValueError(f"backend {name!r} does not cover this call: {refusal}")
    return find(name)


