"""Tiny results and their figures, for the tests of experiments that are measured and drawn at once."""

from collections.abc import Sequence

import pytest

from rebracket import lab
from rebracket.lab.base.experiment import Experiment, Result, mean_over_seeds
from rebracket.lab.base.running import Job, measure


def measured(name: str) -> list[Result]:
    """The results of a tiny grid."""
    experiment = lab.load(name)
    return [measure(Job(experiment, cell)) for cell in experiment.cells("tiny")]


def assert_it_draws(experiment: Experiment, results: Sequence[Result]) -> None:
    """The means are drawn, and every panel says what its axes are and in which units."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    experiment.draw(mean_over_seeds(results), figure)
    drawn = [axes for axes in figure.axes if axes.has_data()]
    assert drawn
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_title() for axes in drawn)
