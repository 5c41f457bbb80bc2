"""An estimate is its mean, and what is made of two is made seed by seed."""

import math
import statistics

import pytest

from rebracket.lab.base.estimate import Estimate

ONE, OTHER = Estimate({0: 1.0, 1: 4.0, 2: 7.0}), Estimate({0: 2.0, 1: 5.0, 2: 9.0})


def test_it_is_its_mean_and_knows_its_error():
    assert ONE == 4.0
    assert ONE.error == pytest.approx(statistics.stdev([1, 4, 7]) / math.sqrt(3))


@pytest.mark.parametrize(
    ("made", "by_seed"),
    [
        (ONE + OTHER, [3, 9, 16]),
        (ONE - OTHER, [-1, -1, -2]),
        (ONE * OTHER, [2, 20, 63]),
        (ONE / OTHER, [0.5, 0.8, 7 / 9]),
        (1 - ONE, [0, -3, -6]),
        (1 + ONE, [2, 5, 8]),
        (ONE - 1, [0, 3, 6]),
        (2 * ONE, [2, 8, 14]),
        (28 / ONE, [28, 7, 4]),
        (-ONE, [-1, -4, -7]),
        (abs(ONE - 5), [4, 1, -2]),
        (abs(5 - OTHER), [-3, 0, 4]),
        (ONE.map(lambda x: x * x), [1, 16, 49]),
    ],
)
def test_what_is_made_of_it_is_made_seed_by_seed(made, by_seed):
    assert list(made.by_seed.values()) == pytest.approx(by_seed)
    assert made == pytest.approx(statistics.fmean(by_seed))


def test_a_paired_difference_is_surer_than_two_means():
    assert (OTHER - ONE).error < ONE.error / 3


def test_only_common_seeds_are_paired():
    assert (ONE - Estimate({2: 1.0, 3: 50.0})).by_seed == {2: 6.0}
    with pytest.raises(ValueError, match="by_seed must hold"):
        _ = ONE - Estimate({5: 1.0})


def test_one_seed_and_a_nan_tell_nothing():
    assert Estimate({3: 1.0}).error == math.inf
    assert math.isnan(Estimate({0: math.nan, 1: 1.0}).error)


def test_the_largest_keeps_its_seeds():
    assert max([ONE, OTHER], key=float) is OTHER
    assert max(ONE, OTHER).by_seed == OTHER.by_seed
