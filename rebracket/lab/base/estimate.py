"""A number that was measured at several seeds: its mean, its standard error, and the numbers themselves."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping
from typing import final


@final
class Estimate(float):
    """The mean of a number over seeds, which keeps the number of every seed.

    It is a float, the mean. Sums, differences, products and quotients are taken seed by seed, over the seeds that both
    sides have, so the standard error of a difference is that of the paired differences. What other functions make of
    it (`math.log`, `round`) is a plain float without seeds; `map` keeps them.

    Args:
        by_seed: the number of each seed, at least one.

    Raises:
        ValueError: If there is no seed, or two sides have none in common.

    Example:
        >>> one, other = Estimate({0: 0.5, 1: 0.9}), Estimate({0: 0.4, 1: 0.8})
        >>> gain = one - other
        >>> round(gain, 3), round(one.error, 3), round(gain.error, 3)
        (0.1, 0.2, 0.0)
    """

    by_seed: Mapping[int, float]

    def __new__(cls, by_seed: Mapping[int, float]) -> Estimate:
        if not by_seed:
            raise ValueError("by_seed must hold the number of at least one seed; are both sides measured at the same?")
        made = super().__new__(cls, statistics.fmean(by_seed.values()))
        made.by_seed = dict(by_seed)
        return made

    @property
    def error(self) -> float:
        """The standard error of the mean, s / sqrt(n); infinite where there is one seed, which tells nothing of it."""
        numbers = list(self.by_seed.values())
        if len(numbers) == 1:
            return math.inf
        return statistics.stdev(numbers) / math.sqrt(len(numbers)) if all(map(math.isfinite, numbers)) else math.nan

    def map(self, change: Callable[[float], float]) -> Estimate:
        """The same function of the number of every seed."""
        return Estimate({seed: change(x) for seed, x in self.by_seed.items()})

    def paired(self, other: float, combine: Callable[[float, float], float]) -> Estimate:
        """A function of two numbers of every seed; a plain number is the same at all of them."""
        if not isinstance(other, Estimate):
            return self.map(lambda x: combine(x, other))
        common = [seed for seed in self.by_seed if seed in other.by_seed]
        return Estimate({seed: combine(self.by_seed[seed], other.by_seed[seed]) for seed in common})

    def __add__(self, other: float) -> Estimate:
        return self.paired(other, operator.add)

    def __radd__(self, other: float) -> Estimate:
        return self + other

    def __sub__(self, other: float) -> Estimate:
        return self.paired(other, operator.sub)

    def __rsub__(self, other: float) -> Estimate:
        return -self + other

    def __mul__(self, other: float) -> Estimate:
        return self.paired(other, operator.mul)

    def __rmul__(self, other: float) -> Estimate:
        return self * other

    def __truediv__(self, other: float) -> Estimate:
        return self.paired(other, operator.truediv)

    def __rtruediv__(self, other: float) -> Estimate:
        return self.map(lambda x: other / x)

    def __neg__(self) -> Estimate:
        return self.map(operator.neg)

    def __abs__(self) -> Estimate:
        """The number with the sign of its mean taken off: noise around 0 must not add up to a distance from it."""
        return -self if self < 0 else self
