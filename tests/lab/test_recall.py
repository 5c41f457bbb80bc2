"""The claim about recall holds on a tiny grid, and is refuted by a rule, a gate or a window that forgets."""

import functools

import pytest
import torch

from rebracket.lab import recall
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.lab.base.running import Job, measure
from rebracket.nn.writes.base import Written
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.ops.state import State
from rebracket.ops.writes.delta import Delta

layers = recall.attention


@functools.cache
def healthy(mixer):
    """The results of one mixer on the tiny grid."""
    return measured(mixer)


def measured(mixer):
    experiment = recall.Recall()
    return [measure(Job(experiment, x)) for x in experiment.cells("tiny") if x["mixer"] == mixer]


def judged(faulty=None):
    """The verdict when one mixer is measured again."""
    results = [r for mixer in recall.FEW for r in (measured(mixer) if mixer == faulty else healthy(mixer))]
    return recall.Recall().verdict(mean_over_seeds(results))


def test_it_holds():
    verdict = judged()
    assert verdict.passed, verdict.sentence
    assert "Mean accuracy at the best rate: softmax" in verdict.sentence


def nothing(self, x, k, v, log_decay):
    """A rule that writes nothing."""
    return Written(k, v, Delta(torch.zeros(v.shape[:-1])))


def windowed():
    """Attention to the last tokens only."""
    first, second = layers()
    return [first, {**second, "window": 4}]


def swapped(name, task, seed, build=recall.build):
    """The additive mixer is a delta rule under another name."""
    return build("deltanet" if name == "linear_transformer" else name, task, seed)


@pytest.mark.parametrize(
    ("where", "name", "fault", "faulty", "what"),
    [
        (DeltaWrite, "forward", nothing, "deltanet", "deltanet above the best additive mixer"),
        (recall, "attention", windowed, "softmax", "softmax"),
        (recall, "build", swapped, "linear_transformer", "deltanet above the best additive mixer"),
    ],
    ids=["a rule that writes nothing", "a window", "another rule"],
)
def test_a_planted_fault_refutes_it(monkeypatch, where, name, fault, faulty, what):
    for mixer in recall.FEW:
        healthy(mixer)
    monkeypatch.setattr(where, name, fault)
    verdict = judged(faulty)
    assert f"REFUTED: {what}" in verdict.sentence, verdict.sentence


@pytest.mark.parametrize("size", ["tiny", "quick", "full"])
def test_every_mixer_of_a_grid_has_the_same_memory(size):
    experiment, task = recall.Recall(), recall.TASKS[size]
    mixers = {str(cell["mixer"]) for cell in experiment.grid(size)} - {"softmax"}
    for mixer in mixers:
        for layer in recall.build(mixer, task, 0).empty_cache(1).layers:
            assert isinstance(layer.state, State)
            assert layer.state.memory.nbytes == 2 * 14 * 32 * 4, mixer


def test_the_full_grid_has_what_the_issue_asks_for():
    cells = recall.Recall().grid("full")
    assert len({cell["rate"] for cell in cells}) == 4
    assert {cell["mixer"] for cell in cells} == set(recall.EVERY)
    assert len(cells) == 4 * len(recall.EVERY)


def test_test_slices_reach_beyond_those_of_training():
    for task in recall.TASKS.values():
        assert task.test[-1].pairs >= 2 * max(x.pairs for x in task.train)
        assert all(task.batch % x.tokens == 0 for x in task.train)


def test_the_best_rate_counts():
    results = [
        Result({"mixer": mixer, "rate": rate}, {"accuracy": accuracy}, 1.0)
        for mixer, rate, accuracy in [("gla", 0.1, 0.2), ("gla", 0.01, 0.7), ("kda", 0.1, 0.4), ("kda", 0.01, 0.3)]
    ]
    assert {mixer: r.cell["rate"] for mixer, r in recall.best(results).items()} == {"gla": 0.01, "kda": 0.1}


def test_a_run_that_knows_enough_stops(monkeypatch):
    monkeypatch.setattr(recall, "ENOUGH", -1.0)
    cell = {"task": "tiny", "steps": 40, "rate": 1e-2, "mixer": "gla", "seed": 0}
    assert recall.Recall().measure(cell)["steps taken"] == 40 // recall.CHECKS


@functools.cache
def one():
    experiment = recall.Recall()
    cell = {"task": "tiny", "steps": 5, "rate": 1e-2, "mixer": "gla", "seed": 0}
    return experiment, measure(Job(experiment, cell))


def test_a_cell_alone_decides_its_numbers():
    experiment, result = one()
    again = experiment.measure(result.cell)
    assert {**again, "tokens per second": 0} == {**result.numbers, "tokens per second": 0}


def test_it_draws_every_slice():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    experiment, result = one()
    figure = Figure()
    experiment.draw(mean_over_seeds([result]), figure)
    assert list(figure.axes[0].lines[0].get_xdata()) == [x.pairs for x in recall.TASKS["tiny"].test]  # type: ignore[arg-type]
