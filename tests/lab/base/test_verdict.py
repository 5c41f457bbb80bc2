"""A verdict holds when every check does, is refuted by one, and else open; a NaN never passes."""

import math

import pytest

from rebracket.lab.base.estimate import Estimate
from rebracket.lab.base.verdict import Check, Verdict, largest_deviation


@pytest.mark.parametrize(
    ("found", "low", "high", "passed"),
    [(1, 1, 1, True), (0.9, 1, 2, False), (2.1, 1, 2, False), (math.nan, -math.inf, math.inf, False)],
)
def test_an_exact_check_passes_within_its_bounds_and_is_else_refuted(found, low, high, passed):
    assert Check("x", found, low, high).passed == passed
    assert Check("x", found, low, high).outcome == ("held" if passed else "refuted")


AROUND_1 = Estimate({0: 0.9, 1: 1.0, 2: 1.1})  # 1 with a standard error of 0.0577
BESIDE_IT = 2 * 0.1 / math.sqrt(3)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1 - 1.01 * BESIDE_IT, math.inf, "held"),
        (1 - 0.99 * BESIDE_IT, math.inf, "open"),
        (1.0, math.inf, "open"),
        (1 + 0.99 * BESIDE_IT, math.inf, "open"),
        (1 + 1.01 * BESIDE_IT, math.inf, "refuted"),
        (-math.inf, 1 + 1.01 * BESIDE_IT, "held"),
        (-math.inf, 1 + 0.99 * BESIDE_IT, "open"),
        (-math.inf, 1 - 1.01 * BESIDE_IT, "refuted"),
        (0.89, 1.11, "open"),
        (0.8, 1.2, "held"),
        (0.99, 1.01, "open"),
    ],
)
def test_a_measured_check_is_decided_by_its_interval(low, high, outcome):
    assert Check("x", AROUND_1, low, high).outcome == outcome


def test_one_seed_decides_nothing_and_a_nan_refutes():
    assert Check("x", Estimate({0: 5.0}), low=1).outcome == "open"
    assert Check("x", Estimate({0: 5.0}), high=1).outcome == "open"
    assert Check("x", Estimate({0: math.nan, 1: 5.0}), low=1).outcome == "refuted"


def test_a_paired_difference_decides_what_two_means_could_not():
    one, other = Estimate({0: 0.2, 1: 0.5, 2: 0.8}), Estimate({0: 0.3, 1: 0.61, 2: 0.9})
    assert one.error > 0.1
    assert Check("gain", other - one, low=0.05).outcome == "held"


def test_the_worst_check_is_the_verdict():
    held, unsure, wrong = Check("a", 1, high=2), Check("c", AROUND_1, low=1), Check("b", 3, high=2)
    assert Verdict.of(held).outcome == "held"
    assert Verdict.of(held, unsure).outcome == "open"
    assert Verdict.of(wrong, unsure, held).outcome == "refuted"
    assert Verdict.of(held).sentence == "a 1 (at most 2)."
    assert Verdict.of(held, wrong).sentence == "a 1 (at most 2); REFUTED: b 3 (at most 2)."
    assert Verdict.of(unsure, note="It is so.").sentence == "OPEN: c 1 ± 0.058 over 3 seeds (at least 1). It is so."


def test_of_several_the_worst_is_told_and_how_many_there_are():
    far = Estimate({0: 0.0, 1: 0.0, 2: 0.01})
    found = Check.every("error", [0.1, AROUND_1, far], high=2, source="theory")
    assert (found.found, found.cells, found.outcome, found.source) == (AROUND_1, 3, "held", "theory")
    wild = Estimate({0: -9.0, 1: 1.0, 2: 11.0})
    assert Check.every("error", [wild, 2.1], high=2).found == 2.1  # refuted counts more than open
    assert str(Check.every("error", [0.1, 2.1], high=2)) == "REFUTED: error 2.1, worst of 2 (at most 2)"


def test_what_was_predicted_is_shown():
    assert str(Check("weight", 0.5, 0.4, 0.6, predicted=0.52)) == "weight 0.5 (predicted 0.52, 0.4 to 0.6)"


def test_the_furthest_is_on_either_side_and_sees_a_nan():
    assert largest_deviation([(1.1, 1), (0.7, 1)]) == pytest.approx(0.3)
    assert math.isnan(largest_deviation([(1.1, 1), (math.nan, 1), (0.7, 1)]))
