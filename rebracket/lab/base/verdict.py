"""Whether a claim held: the numbers that decide, how sure they are, and the bounds within which they pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, final

from rebracket.lab.base.estimate import Estimate

Outcome = Literal["refuted", "open", "held"]
OUTCOMES: tuple[Outcome, ...] = ("refuted", "open", "held")
"""The worst first: a claim has that of its worst check."""
ERRORS = 2.0
"""Half the width of an interval in standard errors of the mean."""


@final
@dataclass(frozen=True)
class Check:
    """One number and the bounds within which the claim holds.

    A number that was measured at several seeds (`Estimate`) is an interval, its mean ± 2 standard errors: the check is
    held where all of it lies within the bounds, refuted where all of it lies beyond one, else open, and so is one seed
    alone. A plain number is exact: it follows from a formula, or was averaged until nothing of it is left to chance.

    Args:
        what: the number in words.
        found: what was measured; a NaN refutes.
        low: the least that passes.
        high: the most that passes.
        predicted: what a formula or a paper says it is, if one does.
        source: where the bounds come from: a theory, a paper, or a pilot run at other seeds.
        cells: of how many numbers this is the worst one.

    Example:
        >>> print(Check("error off its formula", 0.021, high=0.05))
        error off its formula 0.021 (at most 0.05)
        >>> print(Check("slope", 2.4, 0.9, 1.1))
        REFUTED: slope 2.4 (0.9 to 1.1)
        >>> print(Check("gain", Estimate({0: 0.1, 1: 0.5, 2: 0.3}), low=0.2))
        OPEN: gain 0.3 ± 0.12 over 3 seeds (at least 0.2)
    """

    what: str
    found: float
    low: float = -math.inf
    high: float = math.inf
    predicted: float | None = None
    source: str = ""
    cells: int = 1

    @classmethod
    def every(
        cls, what: str, found: Iterable[float], low: float = -math.inf, high: float = math.inf, source: str = ""
    ) -> Check:
        """That each of several numbers lies within the bounds, told by the one that does so worst."""
        checks = [cls(what, x, low, high, source=source) for x in found]
        return replace(min(checks, key=lambda x: (OUTCOMES.index(x.outcome), x.margin)), cells=len(checks))

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the most that the number may be."""
        half = ERRORS * self.found.error if isinstance(self.found, Estimate) else 0.0
        return float(self.found) - half, float(self.found) + half

    @property
    def margin(self) -> float:
        """How far the interval stays from the nearer bound; negative where it crosses one."""
        low, high = self.interval
        return min(low - self.low, self.high - high)

    @property
    def outcome(self) -> Outcome:
        low, high = self.interval
        if self.low <= low and high <= self.high:
            return "held"
        return "open" if low <= self.high and self.low <= high else "refuted"

    @property
    def passed(self) -> bool:
        return self.outcome == "held"

    @property
    def seeds(self) -> int | None:
        """How many were measured; None where the number is exact."""
        return len(self.found.by_seed) if isinstance(self.found, Estimate) else None

    @property
    def measured(self) -> str:
        """The number, and the standard error of its mean."""
        if not isinstance(self.found, Estimate):
            return f"{self.found:.3g}"
        return f"{self.found:.3g} ± {self.found.error:.2g}" if len(self.found.by_seed) > 1 else f"{self.found:.3g} ± ?"

    @property
    def bounds(self) -> str:
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high == math.inf else f"{self.low:g} to {self.high:g}"

    def __str__(self) -> str:
        mark = "" if self.passed else f"{self.outcome.upper()}: "
        seeds = "" if self.seeds is None else f" over {self.seeds} seed{'s' * (self.seeds > 1)}"
        worst = "" if self.cells == 1 else f", worst of {self.cells}"
        predicted = "" if self.predicted is None else f"predicted {self.predicted:.3g}, "
        return f"{mark}{self.what} {self.measured}{seeds}{worst} ({predicted}{self.bounds})"


@final
@dataclass(frozen=True)
class Verdict:
    """Whether a claim held, by its checks.

    Args:
        checks: at least one.
        note: what else was found, a sentence.

    Example:
        >>> verdict = Verdict.of(Check("error off its formula", 0.021, high=0.05))
        >>> verdict.outcome, verdict.sentence
        ('held', 'error off its formula 0.021 (at most 0.05).')
    """

    checks: tuple[Check, ...]
    note: str = ""

    @classmethod
    def of(cls, *checks: Check, note: str = "") -> Verdict:
        """The claim is held if all checks are, refuted if one is, else open."""
        return cls(checks, note)

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[min(OUTCOMES.index(check.outcome) for check in self.checks)]

    @property
    def passed(self) -> bool:
        return self.outcome == "held"

    @property
    def sentence(self) -> str:
        """Every number, how sure it is, and its bounds."""
        return "; ".join(map(str, self.checks)) + "." + (f" {self.note}" if self.note else "")


def largest_deviation(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest |measured / expected - 1| over pairs (measured, expected), at least one; NaN if any is.

    It is exact, a plain number, whatever the pairs are: formulas are compared with means over very many samples.

    Example:
        >>> round(largest_deviation([(1.02, 1.0), (1.9, 2.0)]), 3)
        0.05
    """
    deviations = [abs(float(measured) / expected - 1) for measured, expected in pairs]
    return math.nan if any(math.isnan(x) for x in deviations) else max(deviations)
