"""Gates are exchanged and nothing else; the verdict holds for numbers as the pilot found them, and turns with them."""

import pytest
import torch

from rebracket import lab
from rebracket.lab import gating
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.lab.base.learning import model_without_mlps
from rebracket.lab.base.pairs import generator
from rebracket.nn.attention import LinearAttention
from tests.lab.drawn import assert_it_draws
from tests.lab.little_text import use_little_text

EXPERIMENT = lab.load("gating")
SOUND = {
    "recall": {"none": 0.95, "silu": 0.90, "sigmoid": 0.94},
    "language": {"none": 2.93, "silu": 2.85, "sigmoid": 2.82},
}


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)
    monkeypatch.setattr(gating, "PARAMETERS", {16: 20000})


def made_up(task, gate, number):
    cell = {"task": task, "d_model": 32, "steps": 3, "rate": 0.1, "mixer": "gla", "gate": gate}
    numbers = {"chosen by": 0.5, "accuracy" if task == "recall" else "bits": number, "parameters": 100.0}
    return [Result({**cell, "seed": seed}, numbers, 0.1) for seed in range(3)]


def results_of(found):
    return [x for task, gates in found.items() for gate, number in gates.items() for x in made_up(task, gate, number)]


def verdict_of(found):
    return EXPERIMENT.verdict(mean_over_seeds(results_of(found)))


def test_it_holds_for_what_the_pilot_found_and_is_drawn():
    assert verdict_of(SOUND).passed
    assert_it_draws(EXPERIMENT, results_of(SOUND))


@pytest.mark.parametrize(
    ("task", "gate", "number", "what"),
    [
        ("recall", "silu", 0.94, "recall that SiLU costs"),
        ("recall", "sigmoid", 0.90, "recall that a sigmoid has more than SiLU"),
        ("language", "none", 2.84, "bits per byte that the better gate saves"),
        ("language", "silu", 2.92, "bits per byte between the gates"),
    ],
)
def test_the_verdict_turns_with_the_numbers(task, gate, number, what):
    verdict = verdict_of({**SOUND, task: {**SOUND[task], gate: number}})
    assert f"REFUTED: {what}" in verdict.sentence


def test_each_gate_is_judged_at_its_best_rate():
    worse = [
        Result({**r.cell, "rate": 0.2}, {**r.numbers, "chosen by": 0.6, "bits": 9.0}, 0.1)
        for r in made_up("language", "silu", 2.85)
    ]
    found = gating.by_gate(mean_over_seeds([*made_up("language", "silu", 2.85), *worse]))
    assert found == {"gla, 32": {"silu": 2.85}}


def layer(gate, seed=0):
    cell = {"mixer": "gated_deltanet"}
    model = model_without_mlps(gating.layers(cell), vocabulary=9, d_model=16, context=8, seed=0)
    gating.exchange_gates(model, gate)
    model.init_weights(seed)
    mixer = model.mixers()[0]
    assert isinstance(mixer, LinearAttention)
    return mixer


@pytest.mark.parametrize(("gate", "activation"), [("silu", torch.nn.functional.silu), ("sigmoid", torch.sigmoid)])
def test_a_gate_multiplies_what_the_same_layer_reads_without_it(gate, activation):
    gated, bare, x = layer(gate), layer("none"), torch.randn(1, 9, 16)
    with torch.no_grad():
        bare.load_state_dict({name: x for name, x in gated.state_dict().items() if not name.startswith("gate.")})
        gated.out.weight.copy_(torch.eye(16, 64))
        bare.out.weight.copy_(torch.eye(16, 64))
        assert gated.gate is not None
        factor = activation(gated.gate(x))[..., :16]
        assert torch.allclose(gated(x)[0], bare(x)[0] * factor, rtol=1e-4, atol=1e-6)


def test_softmax_has_no_gate_to_exchange():
    layers = [{"mixer": "softmax", "heads": 2}]
    model = model_without_mlps(layers, vocabulary=9, d_model=16, context=8, seed=0)
    with pytest.raises(TypeError, match="only linear attention has a gate, got SoftmaxAttention"):
        gating.exchange_gates(model, "none")


@pytest.mark.parametrize("task", ["recall", "language"])
def test_both_tasks_are_learned_and_differ_by_gate_alone(task):
    cell = {"task": task, "d_model": 16, "steps": 20, "rate": 0.02, "mixer": "gla", "seed": 3}
    before, none, silu = (
        EXPERIMENT.measure({**cell, "gate": gate, "steps": steps})
        for gate, steps in (("none", 1), ("none", 20), ("silu", 20))
    )
    assert none["chosen by"] < before["chosen by"]
    assert none["state bytes"] == silu["state bytes"]
    if task == "language":
        assert abs(none["parameters"] / silu["parameters"] - 1) < 0.02


def test_steps_draw_new_examples_of_all_sizes():
    shapes = {gating.batch(0, step).tokens.shape for step in range(30)}
    assert shapes == {(gating.BATCH // (4 * n), 4 * n) for n in gating.SEEN}
    assert not torch.equal(gating.batch(0, 1).tokens, gating.batch(1, 1).tokens)
    assert 0 <= gating.right(layer_model(), generator(1)) < 0.2


def layer_model():
    return model_without_mlps(
        gating.layers({"mixer": "gla"}), vocabulary=gating.VOCABULARY, d_model=16, context=8, seed=0
    )
