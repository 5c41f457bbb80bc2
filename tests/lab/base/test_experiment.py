"""Cells are the grid times the seeds; means are over seeds alone."""

from rebracket.lab.base.experiment import Result, mean_over_seeds, points
from tests.lab.planted import Planted


def test_cells_are_points_times_seeds():
    assert Planted().cells("tiny", 2) == [{"n": n, "seed": seed} for seed in (0, 1) for n in (2, 3)]
    assert len(Planted().cells("full")) == 40


def test_points_are_every_combination():
    assert points({"a": [1, 2], "b": ["x"], "c": [3, 4]})[1:3] == [
        {"a": 1, "b": "x", "c": 4},
        {"a": 2, "b": "x", "c": 3},
    ]


def test_means_are_over_seeds_and_keep_points_apart():
    results = [Result({"n": n, "seed": seed}, {"x": n + seed}, 1.0) for seed in (0, 1) for n in (2, 5)]
    assert mean_over_seeds(results) == [Result({"n": 2}, {"x": 2.5}, 2.0), Result({"n": 5}, {"x": 5.5}, 2.0)]
