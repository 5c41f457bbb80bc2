"""Cells are the grid times the seeds; means are over seeds alone."""

from rebracket.lab.base.experiment import Result, mean_over_seeds, plain_means, points
from tests.lab.planted import Planted


def test_cells_are_points_times_seeds():
    assert Planted().cells("tiny", 2) == [{"n": n, "seed": seed} for seed in (0, 1) for n in (2, 3)]
    assert len(Planted().cells("full")) == 40


def test_the_first_seed_shifts_all_and_leaves_none_in_common():
    shifted = Planted().cells("quick", 2, first_seed=1000)
    assert [cell["seed"] for cell in shifted] == [1000] * 3 + [1001] * 3
    assert [{**cell, "seed": int(cell["seed"]) - 1000} for cell in shifted] == Planted().cells("quick", 2)


def test_points_are_every_combination():
    assert points({"a": [1, 2], "b": ["x"], "c": [3, 4]})[1:3] == [
        {"a": 1, "b": "x", "c": 4},
        {"a": 2, "b": "x", "c": 3},
    ]


def test_means_are_over_seeds_and_keep_points_apart():
    results = [Result({"n": n, "seed": seed}, {"x": n + seed}, 1.0) for seed in (0, 1) for n in (2, 5)]
    assert mean_over_seeds(results) == [Result({"n": 2}, {"x": 2.5}, 2.0), Result({"n": 5}, {"x": 5.5}, 2.0)]


def test_means_know_their_seeds_and_plain_ones_do_not():
    results = [Result({"n": 2, "seed": seed}, {"x": x}, 1.0) for seed, x in ((7, 1.0), (8, 3.0))]
    (mean,) = mean_over_seeds(results)
    assert mean["x"].by_seed == {7: 1.0, 8: 3.0}  # type: ignore[attr-defined]
    (plain,) = plain_means([mean])
    assert type(plain["x"]) is float
    assert plain["x"] == 2.0
