"""Whether a claim held: the numbers that decide and the bounds within which they pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Check:
    """One number and the bounds within which the claim holds.

    Args:
        what: the number in words.
        found: what was measured; a NaN never passes.
        low: the least that passes.
        high: the most that passes.

    Example:
        >>> print(Check("error off its formula", 0.021, high=0.05))
        error off its formula 0.021 (at most 0.05)
        >>> print(Check("slope", 2.4, 0.9, 1.1))
        REFUTED: slope 2.4 (0.9 to 1.1)
    """

    what: str
    found: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def passed(self) -> bool:
        return self.low <= self.found <= self.high

    @property
    def bounds(self) -> str:
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high == math.inf else f"{self.low:g} to {self.high:g}"

    def __str__(self) -> str:
        return f"{'' if self.passed else 'REFUTED: '}{self.what} {self.found:.3g} ({self.bounds})"


@final
@dataclass(frozen=True)
class Verdict:
    """Whether a claim held, and a sentence with every number and its bounds.

    Args:
        passed: whether it held.
        sentence: what was found.

    Example:
        >>> Verdict.of(Check("error off its formula", 0.021, high=0.05))
        Verdict(passed=True, sentence='error off its formula 0.021 (at most 0.05).')
    """

    passed: bool
    sentence: str

    @classmethod
    def of(cls, *checks: Check) -> Verdict:
        """The claim holds if all checks pass."""
        return cls(all(check.passed for check in checks), "; ".join(map(str, checks)) + ".")


def largest_deviation(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest |measured / expected - 1| over pairs (measured, expected), at least one; NaN if any is.

    Example:
        >>> round(largest_deviation([(1.02, 1.0), (1.9, 2.0)]), 3)
        0.05
    """
    deviations = [abs(measured / expected - 1) for measured, expected in pairs]
    return math.nan if any(math.isnan(x) for x in deviations) else max(deviations)
