"""The learning rate rises to its peak, falls to its floor, and never jumps."""

import pytest

from rebracket.train.config import OptimizerConfig
from rebracket.train.schedule import learning_rate


def rates(steps, **values):
    config = OptimizerConfig(**values)
    return [learning_rate(step, steps, config) for step in range(steps)]


@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (100, 0), (100, 99), (7, 3), (2, 1)])
def test_it_rises_to_the_peak_and_falls_to_the_floor(steps, warmup):
    course = rates(steps, learning_rate=3.0, warmup=warmup, floor=0.25)
    if warmup:
        assert course[warmup - 1] == 3.0
    assert course[-1] == pytest.approx(0.75)
    assert course[:warmup] == sorted(course[:warmup])
    assert course[warmup:] == sorted(course[warmup:], reverse=True)
    assert all(0 < rate <= 3.0 for rate in course)


def test_it_is_linear_then_a_half_cosine():
    course = rates(104, learning_rate=1.0, warmup=4, floor=0.0)
    assert course[:4] == [0.25, 0.5, 0.75, 1.0]
    assert course[53] == pytest.approx(0.5)
    assert course[28] == pytest.approx((1 + 2**-0.5) / 2)


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert rates(3, learning_rate=1.0, warmup=10) == [0.1, 0.2, 0.3]
