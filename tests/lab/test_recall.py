"""The claim about recall holds on a tiny grid, and is refuted by another rule or other labels."""

import functools
import re

import pytest
import torch

from rebracket.lab import recall
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.lab.base.running import Job, measure
from rebracket.nn.writes.base import Written
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.ops.state import State
from rebracket.ops.writes.delta import Delta

EXPERIMENT = recall.Recall()


ACCURACY = {
    "softmax": 0.97,
    "addition": 0.86,
    "deltanet": 0.83,
    "deltanet, silu gate": 0.4,
    "addition, rewritten": 0.4,
    "deltanet, rewritten": 0.9,
    "gated_deltanet, decays open": 0.82,
    "gated_deltanet, silu gate, decays published": 0.3,
}


def judged(seeds=2, **changed):
    """The verdict on accuracies that are made up, of the models of the quick grid."""
    accuracies = ACCURACY | {name.replace("__", ", "): x for name, x in changed.items()}
    results = [
        Result({**cell, "seed": seed}, numbers_of(accuracies[recall.label(cell)] + 0.002 * seed), 1.0)
        for seed in range(seeds)
        for cell in EXPERIMENT.grid("quick")
    ]
    return EXPERIMENT.verdict(mean_over_seeds(results))


def numbers_of(accuracy):
    return {"accuracy": accuracy, "accuracy to choose by": accuracy, "state bytes": 7168.0, "parameters": 35008.0}


def test_every_gain_is_judged_and_held_where_it_should_be():
    verdict = judged()
    assert verdict.passed, verdict.sentence
    assert len(verdict.checks) == len(recall.GAINS) + 2
    assert all(check.source for check in verdict.checks)
    assert "Mean accuracy at the best rate: softmax 0.971 at 0.01" in verdict.sentence


def test_one_seed_decides_nothing_that_was_learned():
    assert judged(seeds=1).outcome == "open"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"deltanet": 0.95}, "deltanet above addition, keys that come once"),
        ({"deltanet__rewritten": 0.5}, "deltanet above addition, keys that come again"),
        ({"deltanet__silu gate": 0.82}, "deltanet above itself with a SiLU gate"),
        ({"gated_deltanet__decays open": 0.7}, "gated_deltanet without gate, decays open, above deltanet"),
        ({"gated_deltanet__silu gate__decays published": 0.8}, "and above itself with a SiLU gate"),
        ({"softmax": 0.87}, "softmax above addition"),
    ],
)
def test_another_accuracy_refutes_it(changed, what):
    verdict = judged(**changed)
    assert f"REFUTED: {what}" in verdict.sentence, verdict.sentence


def recalled(name):
    """What a model of the tiny grid recalls."""
    (cell,) = (x for x in EXPERIMENT.cells("tiny", 1) if recall.label(x) == name)
    return EXPERIMENT.measure(cell)["accuracy"]


def nothing(self, x, k, v, log_decay):
    """A rule that writes nothing."""
    return Written(k, v, Delta(torch.zeros(v.shape[:-1])))


def test_the_delta_rule_learns_the_newest_values_and_a_rule_that_writes_nothing_does_not(monkeypatch):
    whole = recalled("deltanet, rewritten")
    monkeypatch.setattr(DeltaWrite, "forward", nothing)
    assert whole > 0.6 + recalled("deltanet, rewritten")


TASK = recall.TASKS["full", recall.DISTINCT]


def test_every_linear_mixer_has_the_same_memory_and_softmax_the_same_convolution():
    for cell in recall.every_model():
        for layer in recall.build(cell, TASK, 0).empty_cache(1).layers:
            assert layer.tail is not None
            if cell["mixer"] != recall.SOFTMAX:
                assert isinstance(layer.state, State)
                assert layer.state.nbytes == 2 * 14 * 32 * 4, cell


def test_mixers_are_one_layer_but_for_rule_gate_and_decay():
    """What one mixer has and another lacks are the parameters of its rule, its gate and its decay alone."""
    for cell in recall.every_model():
        if cell["mixer"] == recall.SOFTMAX:
            continue
        names = {name for name, _ in recall.build(cell, TASK, 0).named_parameters()}
        plain = {
            name for name, _ in recall.build({**cell, "mixer": "addition", "gate": "none"}, TASK, 0).named_parameters()
        }
        assert plain <= names
        assert all(re.search(r"\.mixer\.(gate|decay|write)\.", name) for name in names - plain)
        assert any(".mixer.gate." in name for name in names) == (cell["gate"] != "none")


@pytest.mark.parametrize("mixer", recall.LEARNED_DECAYS)
def test_open_decays_begin_slower(mixer):
    tokens = torch.randint(100, (2, 9), generator=torch.Generator().manual_seed(0))
    found = {}
    for start in ("published", "open"):
        model = recall.build({"mixer": mixer, "gate": "none", "decays": start, "keys": recall.DISTINCT}, TASK, 0)
        (block, _) = model.each_block()
        found[start] = block.mixer.get_submodule("decay")(block.mixer_norm(model.embed(tokens)))
    ratio = found["published"].sum() / found["open"].sum()
    assert 40 < ratio < 110


def test_the_full_grid_has_every_factor_and_three_rates():
    cells = EXPERIMENT.grid("full")
    assert len({cell["rate"] for cell in cells}) == 3
    assert {(cell["mixer"], cell["gate"]) for cell in cells} >= {
        (mixer, gate) for mixer in recall.RULES for gate in ("none", "silu", "sigmoid")
    }
    assert len(cells) == 3 * 2 * (1 + 3 * (len(recall.RULES) + len(recall.LEARNED_DECAYS)))


def test_test_slices_reach_beyond_those_of_training():
    for task in recall.TASKS.values():
        assert task.test[-1].keys * task.test[-1].writes >= max(x.keys * x.writes for x in task.train)
        assert all(task.batch % x.tokens == 0 for x in task.train)


def result(mixer, rate, choose, accuracy):
    cell = {"mixer": mixer, "gate": "none", "decays": "none", "keys": recall.DISTINCT, "rate": rate}
    return Result(cell, {"accuracy": accuracy, "accuracy to choose by": choose}, 1.0)


def test_the_rate_is_chosen_on_other_sequences_than_those_of_the_test():
    results = [result("gla", 0.1, 0.9, 0.2), result("gla", 0.01, 0.7, 0.8), result("kda", 0.01, 0.4, 0.3)]
    assert [(r.cell["mixer"], r["accuracy"]) for r in recall.best(results)] == [("gla", 0.2), ("kda", 0.3)]


CELL = {"task": "tiny", "steps": 40, "rate": 1e-2, "seed": 0, **recall.FEW[1]}


def test_a_run_that_knows_enough_stops(monkeypatch):
    monkeypatch.setattr(recall, "ENOUGH", -1.0)
    assert recall.Recall().measure(CELL)["tokens"] == 512 * 40 // recall.CHECKS


@functools.cache
def one():
    return measure(Job(EXPERIMENT, {**CELL, "steps": 5}))


def test_a_cell_alone_decides_its_numbers():
    again = EXPERIMENT.measure(one().cell)
    assert {**again, "tokens a core second": 0} == {**one().numbers, "tokens a core second": 0}


def test_it_draws_a_bar_for_every_model():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    EXPERIMENT.draw(mean_over_seeds([one()]), figure)
    assert [x.get_text() for x in figure.axes[0].get_yticklabels()] == ["addition"]
