"""A plain value is what it must be, or the error names it."""

import math
from typing import Any

import pytest

from rebracket.base.checks import number, one_of, text, truth, whole, within


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "2", None, 8])
def test_whole_numbers(bad: Any):
    assert whole("n", 7, 1, 7) == 7
    with pytest.raises(ValueError, match=r"n must be a whole number in \[1, 7\], got"):
        whole("n", bad, 1, 7)


@pytest.mark.parametrize("bad", [0, 2.5, math.nan, True, "1", None])
def test_numbers_above_one_bound_and_up_to_another(bad: Any):
    assert number("beta", 2, 0, 2) == 2
    with pytest.raises(ValueError, match=r"beta must lie in \(0, 2\], got"):
        number("beta", bad, 0, 2)


@pytest.mark.parametrize("bad", [-0.5, 2.5, math.nan, True, "1", None])
def test_numbers_in_a_closed_range(bad: Any):
    assert (within("floor", 0, 0, 1), within("floor", 1.0, 0, 1)) == (0, 1.0)
    with pytest.raises(ValueError, match=r"floor must be a number in \[0, 1\], got"):
        within("floor", bad, 0, 1)


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf, False])
def test_numbers_from_a_bound_on(bad: Any):
    assert within("temperature", 1e9, 0) == 1e9
    with pytest.raises(ValueError, match="temperature must be a number of at least 0, got"):
        within("temperature", bad, 0)


@pytest.mark.parametrize("bad", [0, 1, None, "yes"])
def test_truth_values(bad: Any):
    assert truth("causal", False) is False
    with pytest.raises(TypeError, match="causal must be True or False, got"):
        truth("causal", bad)


@pytest.mark.parametrize("bad", [0, None, b"x", ["x"]])
def test_text(bad: Any):
    assert text("device", "") == ""
    with pytest.raises(TypeError, match="device must be text, got"):
        text("device", bad)


def test_one_of_a_few():
    one_of("act", None, ("silu", None))
    with pytest.raises(ValueError, match="act must be one of 'silu', None, got 'relu'"):
        one_of("act", "relu", ("silu", None))
