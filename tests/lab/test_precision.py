"""The claim about rounding holds on a tiny grid, and is refuted by other roundings, rules or formulas."""

import pytest
import torch

from rebracket import lab
from rebracket.lab import precision
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.lab.base.running import Job, measure
from rebracket.lab.base.text import language_model, long_texts
from rebracket.ops.writes.additive import Additive
from tests.lab.drawn import assert_it_draws
from tests.lab.little_text import use_little_text

EXPERIMENT = lab.load("precision")
BOTH = ("bfloat16", "int8")


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)
    little_ = {"D_MODEL": 24, "PARAMETERS": 25000, "KEY_DIM": 12, "PIECE": 16, "FIRST": 32, "ROWS": 2}
    for name, value in little_.items():
        monkeypatch.setattr(precision, name, value)


def made_up(mixer, rise, added=0.001, left=0.7):
    changes = {f"{precision.WATCHED} changes {place}": 0.1 for place in (128, 256, 512)}
    numbers = {**changes, f"{precision.WATCHED} changes 1024": 0.1 * rise, f"{precision.WATCHED} adds 128": added}
    numbers[f"norm left, {precision.STALLS}"] = left
    numbers[f"{precision.STALLS} adds 128"] = 0.03 if mixer == "linear_transformer" else added
    cell = {"steps": 3, "rate": 0.1, "mixer": mixer, "tokens": 1024, "by token": 64}
    return [Result({**cell, "seed": seed}, {"chosen by": 2.0, **numbers}, 0.1) for seed in range(2)]


@pytest.fixture(scope="module")
def states():
    return [measure(Job(EXPERIMENT, cell)) for cell in EXPERIMENT.cells("tiny") if "rule" in cell]


SOUND = [*made_up("linear_transformer", 2.8), *made_up("gla", 1.0)]


def verdict_of(results):
    return EXPERIMENT.verdict(mean_over_seeds(results))


def test_states_under_random_keys_obey_the_formula_and_are_drawn(states):
    verdict = verdict_of([*states, *SOUND])
    assert verdict.passed, verdict.sentence
    assert_it_draws(EXPERIMENT, [*states, *SOUND])


def once_more(x):
    return precision.to_bfloat16(x * 1.001) / 1.001 + 0.002 * x


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("DECAY", 0.9),
        ("law", lambda cell, once, m: once),
        ("law", lambda cell, once, m: once * ((m + 1) / 2) ** 0.5),
        ("Delta", lambda beta: Additive()),
        ("FORMATS", {"bfloat16": once_more, "int8": precision.to_int8}),
    ],
    ids=["another decay in the formula", "no drift", "drift everywhere", "delta is additive", "errors of one sign"],
)
def test_a_planted_fault_refutes_it(monkeypatch, states, name, fault):
    results = states
    monkeypatch.setattr(precision, name, fault)
    if name in ("Delta", "FORMATS"):
        results = [measure(Job(EXPERIMENT, r.cell)) for r in states if r.cell["seed"] == 0]
    assert "REFUTED: error of rounded states" in verdict_of([*results, *SOUND]).sentence


@pytest.mark.parametrize(
    ("models", "what"),
    [
        ([*made_up("linear_transformer", 1.1), *made_up("gla", 1.0)], "change of a token's bits under a sum"),
        ([*made_up("linear_transformer", 2.8), *made_up("gla", 2.0)], "and where something is forgotten"),
        ([*made_up("linear_transformer", 2.8, left=0.98), *made_up("gla", 1.0)], "norm left of a sum in bfloat16"),
        ([*SOUND, *made_up("kda", 1.0, added=0.02)], "bits per byte that rounding adds"),
    ],
)
def test_the_verdict_turns_with_what_models_do(states, models, what):
    assert f"REFUTED: {what}" in verdict_of([*states, *models]).sentence


def test_bfloat16_keeps_eight_binary_digits():
    x = torch.randn(999)
    assert ((precision.to_bfloat16(x) / x - 1).abs() <= 2**-8).all()
    assert torch.equal(precision.to_bfloat16(x), x.bfloat16().float())


def test_int8_is_whole_multiples_of_a_number_of_each_row():
    x = torch.randn(3, 4, 50)
    rounded = precision.to_int8(x)
    largest = x.abs().amax(-1, keepdim=True)
    counts = 127 * rounded / largest
    assert torch.allclose(counts, counts.round(), atol=1e-3)
    assert ((rounded - x).abs() <= largest / 254 * 1.001).all()
    assert torch.allclose(precision.to_int8(rounded), rounded)
    assert (precision.to_int8(torch.zeros(2, 3)) == 0).all()


@pytest.mark.parametrize("mixer", ["gated_deltanet", "linear_transformer", "softmax"])
def test_states_are_rounded_and_nothing_else_of_a_cache(mixer):
    layers = 2 * [{"mixer": mixer, "heads": 2, "key_dim": 6}]
    model = language_model(layers, d_model=24, parameters=25000, seed=0)
    _, cache = model.read(long_texts(2, 9))
    rounded = precision.with_rounded_state(cache, precision.to_bfloat16).tensors()
    for name, x in cache.tensors().items():
        wanted = x.bfloat16().to(x.dtype) if ".state." in name and x.is_floating_point() else x
        assert torch.equal(rounded[name], wanted)
    assert any(not torch.equal(rounded[name], x) for name, x in cache.tensors().items())


def test_matrices_are_rounded_and_vectors_are_not():
    model = language_model([{"mixer": "gla", "heads": 2}], d_model=24, parameters=25000, seed=0)
    rounded = precision.with_rounded_weights(model, precision.to_int8).state_dict()
    for name, x in model.state_dict().items():
        assert torch.equal(rounded[name], precision.to_int8(x) if x.ndim > 1 else x)


def test_what_is_not_rounded_drifts_nowhere(monkeypatch):
    monkeypatch.setattr(precision, "FORMATS", {"bfloat16": lambda x: x, "int8": precision.to_int8})
    cell = {"steps": 20, "rate": 0.01, "mixer": "linear_transformer", "tokens": 256, "by token": 64, "seed": 0}
    found = EXPERIMENT.measure(cell)
    kept, changed = ([x for name, x in found.items() if name.startswith(f) and "changes" in name] for f in BOTH)
    assert len(kept) == len(changed) == 4 + 2 + 4
    assert max(kept) < 1e-5 < min(changed)
    assert found["norm left, bfloat16 state, every token"] == pytest.approx(1, abs=1e-4)


def test_sums_of_ones_in_bfloat16_stall():
    """Ones added to a bfloat16 number after each other stop counting at 256, where its last digit is worth 2."""
    total = torch.zeros(1)
    for _ in range(300):
        total = precision.to_bfloat16(total + 1)
    assert total == 256
