"""What takes part in a race: something that computes a case, or says why it does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import final

from rebracket.bench.cases import Case, Inputs
from rebracket.bench.truth import Results


@final
class NotCoveredError(Exception):
    """An entrant does not cover a case; the message is the reason."""


@final
@dataclass(frozen=True)
class Attempt:
    """A case made ready.

    Args:
        run: one call, all of which is timed; what it returns is held until the next.
        results: what such a call gave, by name and in the layout of `rebracket.bench.truth`; not timed.
    """

    run: Callable[[], object]
    results: Callable[[object], Results]


class Entrant(ABC):
    """Makes cases ready. Whatever can be done once for many calls is done there."""

    name: str
    """As rows of the table have it."""
    is_peer: bool = True
    """Whether it is somebody else's, so that ours are compared with it."""

    @abstractmethod
    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        """The call to time.

        Args:
            case: what to compute.
            x: its inputs; the state is the entrant's own, the other tensors are everybody's and stay as they are.
            threads: to use; torch is set to it.

        Raises:
            NotCoveredError: it is not installed, or does not cover the case.
        """

    def growth(self, case: Case) -> float:
        """The power of T that the time of a case grows with."""
        return 1.0


def require(condition: bool, reason: str) -> None:
    """Refuses unless a condition holds."""
    if not condition:
        raise NotCoveredError(reason)


def require_installed(package: str, command: str) -> None:
    """Refuses where a package is missing, and says how to get it."""
    require(find_spec(package) is not None, f"not installed: {command}")
