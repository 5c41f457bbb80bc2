"""What a backend is, and which of the installed ones runs a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from rebracket.ops.recurrence import Recurrence
from rebracket.ops.repetition import Repeat, Tensors
from rebracket.ops.state import Output

if TYPE_CHECKING:
    from rebracket.ops.convolution import Convolution


class Backend(ABC):
    """Computes the canonical recurrence and the short convolution, or says why it does not."""

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

    @abstractmethod
    def convolution_refusal(self, call: Convolution) -> str | None:
        """Why this short convolution is not covered, or None."""

    @abstractmethod
    def convolve(self, call: Convolution) -> tuple[Tensor, Tensor]:
        """y [B,T,D] and the next tail [N,W-1,D] of a short convolution."""


INSTALLED: dict[str, Backend] = {}
"""The backends by name, the best first; `rebracket.backends` fills it with one entry per folder."""
Refusal = Callable[[Backend], str | None]
"""Why a backend does not cover the call in question, or None."""


def choose(call: Recurrence, backend: str, chunk: int | None = None) -> Backend:
    """The backend to run; an explicit one is obeyed or refused."""
    return first(backend, lambda candidate: candidate.refusal(call, chunk))


def choose_for_convolution(call: Convolution, backend: str) -> Backend:
    """The backend to run a short convolution; an explicit one is obeyed or refused."""
    return first(backend, lambda candidate: candidate.convolution_refusal(call))


def first(backend: str, refusal: Refusal) -> Backend:
    """The backend that was asked for, or the best that does not refuse."""
    if backend != "auto":
        return explicit(backend, refusal)
    for candidate in INSTALLED.values():
        if refusal(candidate) is None:
            return candidate
    raise ValueError("no backend covers this call: " + "; ".join(refusals(tuple(INSTALLED), refusal)))


def explicit(name: str, refusal: Refusal) -> Backend:
    if name not in INSTALLED:
        raise ValueError(f"backend must be auto or one of {', '.join(INSTALLED)}, got {name!r}")
    reason = refusal(INSTALLED[name])
    if reason is not None:
        raise ValueError(f"backend {name!r} does not cover this call: {reason}")
    return INSTALLED[name]


def reasons(call: Recurrence, backend: str, chosen: Backend, chunk: int | None) -> tuple[str, ...]:
    """Why `choose` took the backend it took."""
    if backend != "auto":
        return (f"backend {backend!r}: asked for",)
    better = tuple(name for name, other in INSTALLED.items() if other.rank > chosen.rank)
    return *refusals(
        better, lambda candidate: candidate.refusal(call, chunk)
    ), f"backend {chosen.name!r}: the best of {', '.join(INSTALLED)} that covers this call"


def refusals(among: tuple[str, ...], refusal: Refusal) -> list[str]:
    return [f"not {name!r}: {refusal(INSTALLED[name])}" for name in among]
