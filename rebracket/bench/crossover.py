"""Where a rule becomes faster than softmax: both grow with T, one faster than the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from rebracket.bench.benchmark import Row
from rebracket.bench.case import Mode

SOFTMAX = "softmax"


@final
@dataclass(frozen=True)
class Line:
    """Median seconds of a rule by T, in one mode on one thread count."""

    rule: str
    title: str
    mode: Mode
    threads: int
    seconds: Mapping[int, float]


def lines(rows: Iterable[Row]) -> list[Line]:
    """The lines that timed rows of a sweep make."""
    found: dict[tuple[str, str, Mode, int], dict[int, float]] = {}
    for row in rows:
        if row.timing is not None and row.status == "timed":
            points = found.setdefault((row.case.name, row.case.title, row.case.mode, row.threads), {})
            points[row.case.shape[1]] = row.timing.median
    return [Line(*of, seconds) for of, seconds in found.items()]


def softmax_of(found: Iterable[Line], line: Line) -> Mapping[int, float]:
    """The seconds of softmax by T in the mode of a line, on as many threads; none where it was not timed."""
    beside = (x.seconds for x in found if (x.rule, x.mode, x.threads) == (SOFTMAX, line.mode, line.threads))
    return next(beside, {})


def crossover(seconds: Mapping[int, float], softmax: Mapping[int, float]) -> float | None:
    """The T from which on a rule stays faster, between points on straight lines of the logarithms.

    Returns:
        0 when it is faster at every T, None when it is slower at the largest T that both have.

    Example:
        >>> crossover({64: 1.0, 256: 4.0}, {64: 0.5, 256: 8.0})
        128.0
    """
    common = sorted(seconds.keys() & softmax.keys())
    behind = [T for T in common if seconds[T] >= softmax[T]]
    if not common or behind[-1:] == common[-1:]:
        return None
    if not behind:
        return 0.0
    low, high = behind[-1], common[common.index(behind[-1]) + 1]
    lag, lead = math.log(seconds[low] / softmax[low]), math.log(softmax[high] / seconds[high])
    return round(low * (high / low) ** (lag / (lag + lead)), 6)
