"""What a backend is, and which of the installed ones runs a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rebracket.ops.recurrence import Recurrence
from rebracket.ops.repetition import Repeat, Tensors
from rebracket.ops.state import Output


class Backend(ABC):
    """Computes the canonical recurrence, or says why it does not."""

    name: ClassVar[str]
    rank: ClassVar[int]
    """Of the backends that accept a call, "auto" takes the one of the highest rank."""
    chunk: ClassVar[int]
    """The chunk in tokens when the caller names none."""

    @abstractmethod
    def refusal(self, call: Recurrence, chunk: int | None) -> str | None:
        """Why this call is not covered in chunks of `chunk` tokens (None: of the backend's choice), or None."""

    @abstractmethod
    def run(self, call: Recurrence, chunk: int) -> Output:
        """The whole sequence in chunks of `chunk` tokens: 1 is recurrent, T or more is parallel."""

    @abstractmethod
    def step(self, call: Recurrence, inplace: bool) -> Output:
        """One token (T = 1) from a given state, written into that state when `inplace`."""

    def repeat(self, call: Recurrence, inplace: bool, tensors: Tensors) -> Repeat | None:
        """A shorter way for later steps that differ from this one only in the numbers in `tensors`, or None."""
        return None


INSTALLED: dict[str, Backend] = {}
"""The backends by name, the best first; `rebracket.backends` fills it with one entry per folder."""


def choose(call: Recurrence, backend: str, chunk: int | None = None) -> Backend:
    """The backend to run; an explicit one is obeyed or refused."""
    if backend != "auto":
        return explicit(call, backend, chunk)
    for candidate in INSTALLED.values():
        if candidate.refusal(call, chunk) is None:
            return candidate
    raise ValueError("no backend covers this call: " + "; ".join(refusals(call, tuple(INSTALLED), chunk)))


def explicit(call: Recurrence, name: str, chunk: int | None) -> Backend:
    if name not in INSTALLED:
        raise ValueError(f"backend must be auto or one of {', '.join(INSTALLED)}, got {name!r}")
    refusal = INSTALLED[name].refusal(call, chunk)
    if refusal is not None:
        raise ValueError(f"backend {name!r} does not cover this call: {refusal}")
    return INSTALLED[name]


def reasons(call: Recurrence, backend: str, chosen: Backend, chunk: int | None) -> tuple[str, ...]:
    """Why `choose` took the backend it took."""
    if backend != "auto":
        return (f"backend {backend!r}: asked for",)
    better = tuple(name for name, other in INSTALLED.items() if other.rank > chosen.rank)
    return *refusals(
        call, better, chunk
    ), f"backend {chosen.name!r}: the best of {', '.join(INSTALLED)} that covers this call"


def refusals(call: Recurrence, among: tuple[str, ...], chunk: int | None) -> list[str]:
    return [f"not {name!r}: {INSTALLED[name].refusal(call, chunk)}" for name in among]
