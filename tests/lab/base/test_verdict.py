"""A verdict holds when every check does; a NaN never passes."""

import math

import pytest

from rebracket.lab.base.verdict import Check, Verdict, largest_deviation


@pytest.mark.parametrize(
    ("found", "low", "high", "passed"),
    [(1, 1, 1, True), (0.9, 1, 2, False), (2.1, 1, 2, False), (math.nan, -math.inf, math.inf, False)],
)
def test_a_check_passes_within_its_bounds(found, low, high, passed):
    assert Check("x", found, low, high).passed == passed


def test_one_failing_check_refutes_and_is_marked():
    verdict = Verdict.of(Check("a", 1, high=2), Check("b", 3, high=2))
    assert verdict == Verdict(False, "a 1 (at most 2); REFUTED: b 3 (at most 2).")
    assert Verdict.of(Check("a", 1, low=0)) == Verdict(True, "a 1 (at least 0).")


def test_the_furthest_is_on_either_side_and_sees_a_nan():
    assert largest_deviation([(1.1, 1), (0.7, 1)]) == pytest.approx(0.3)
    assert math.isnan(largest_deviation([(1.1, 1), (math.nan, 1), (0.7, 1)]))
