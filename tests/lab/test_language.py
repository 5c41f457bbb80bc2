"""The claim about language models holds on a tiny grid, and is refuted by another layer, other sizes or no training."""

import math
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rebracket.lab import language
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.nn import presets
from rebracket.nn.mixer import MixerSize
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.train.trainer import Trainer
from tests.lab.measuring import judged

SIZE = MixerSize(d_model=12, heads=2, key_heads=2, key_dim=4, value_dim=5)


@pytest.fixture(autouse=True)
def smaller(monkeypatch, tmp_path_factory):
    """A model of 28,000 parameters, half a megabyte of text."""
    text = str(Path(sysconfig.get_path("stdlib"), "asyncio"))
    little = {
        "TEXT": text,
        "VOCABULARY": 300,
        "D_MODEL": 32,
        "DEPTH": 2,
        "CONTEXT": 128,
        "MLP_DIM": 64,
        "WARMUP": 10,
        "BATCH": 1024,
    }
    for name, value in {**little, "SIZES": {"heads": 2, "key_dim": 8}, "HELD_OUT": 8192}.items():
        monkeypatch.setattr(language, name, value)
    monkeypatch.setenv("REBRACKET_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_it_holds():
    verdict = judged("language")
    assert verdict.passed, verdict.sentence
    assert "learning rates: gated_deltanet 0.006" in verdict.sentence


def unfitted(name, part, seed):
    return language.sized(name, part, language.MLP_DIM, seed)


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("build", unfitted, "parameters apart"),
        ("RATES", {"tiny": (1e-9,)}, "bits per byte learned after the first quarter"),
    ],
    ids=["unequal sizes", "nothing learned"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(language, name, fault)
    verdict = judged("language")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def test_a_training_that_breaks_is_counted_and_no_number_is_made_up_for_it(monkeypatch):
    def broken(self):
        raise FloatingPointError

    monkeypatch.setattr(Trainer, "advance", broken)
    numbers = language.Language().measure({"model": "gla", "without": "nothing", "steps": 4, "rate": 1e-3, "seed": 0})
    assert all(math.isnan(numbers[f"bits {stage}"]) for stage in range(1, language.STAGES + 1))
    assert numbers["broke"] == 1


def ended(model, without, rate, bits, seed):
    broke = math.isnan(bits)
    bits_of = {"bits 1": bits + 1, "bits 4": bits, "bits to choose by": bits}
    cell = {"model": model, "without": without, "rate": rate, "steps": language.STEPS["full"], "seed": seed}
    return Result(cell, {"parameters": 1.0, "tokens": 1.0, **bits_of, "broke": float(broke)}, 1.0)


def test_what_broke_is_told_apart_and_not_compared():
    whole = [ended("gated_deltanet", "nothing", 0.1, 2.0 + 0.01 * seed, seed) for seed in range(3)]
    part = [ended("gated_deltanet", "decay", 0.1, bits, seed) for seed, bits in enumerate((2.1, math.nan, math.nan))]
    verdict = language.Language().verdict(mean_over_seeds([*whole, *part]))
    assert "without decay: 2 of 3 trainings broke" in verdict.sentence
    assert "without decay above" not in verdict.sentence
    assert language.unbroken(mean_over_seeds(part)[0]["bits 4"]) == 2.1


@pytest.mark.parametrize(
    ("bits", "outcome"),
    [((2.2, 2.21, 2.22), "held"), ((1.9, 1.91, 1.92), "refuted"), ((1.8, 2.2, 2.6), "open")],
)
def test_orders_are_judged_after_the_full_training_alone(bits, outcome):
    whole = [ended("gated_deltanet", "nothing", 0.1, 2.0 + 0.01 * seed, seed) for seed in range(3)]
    others = [ended("softmax", "nothing", 0.1, x, seed) for seed, x in enumerate(bits)]
    checks = {x.what: x.outcome for x in language.Language().verdict(mean_over_seeds([*whole, *others])).checks}
    assert checks["softmax above gated_deltanet by"] == outcome
    short = [replace(r, cell={**r.cell, "steps": 100}) for r in (*whole, *others)]
    assert "softmax above" not in language.Language().verdict(mean_over_seeds(short)).sentence


def test_a_rate_that_breaks_is_not_chosen():
    steady = [ended("gla", "nothing", 0.1, 2.5, seed) for seed in range(2)]
    wild = [ended("gla", "nothing", 0.2, bits, seed) for seed, bits in enumerate((2.0, math.nan))]
    (chosen,) = language.best(mean_over_seeds([*wild, *steady]))
    assert chosen.cell["rate"] == 0.1


def test_leaving_nothing_out_is_the_preset():
    torch.manual_seed(0)
    whole = presets.make("gated_deltanet", SIZE)
    torch.manual_seed(0)
    rebuilt = language.without(SIZE, language.WHOLE)
    x = torch.randn(1, 9, 12)
    assert torch.equal(whole(x)[0], rebuilt(x)[0])


@pytest.mark.parametrize("part", language.PARTS)
def test_a_part_left_out_makes_another_layer(part):
    torch.manual_seed(0)
    whole, rest = (language.without(SIZE, name) for name in (language.WHOLE, part))
    rest.load_state_dict(fitting(whole.state_dict(), rest.state_dict()))
    x = torch.randn(1, 9, 12)
    assert not torch.allclose(whole(x)[0], rest(x)[0], rtol=1e-3)


def fitting(given, wanted):
    return {name: given[name] if name in given and given[name].shape == x.shape else x for name, x in wanted.items()}


@pytest.mark.parametrize("name", language.PATTERNS)
def test_every_model_has_the_parameters_of_gated_deltanet(name):
    counts = [language.build(model, language.WHOLE, 0).parameter_count() for model in (name, language.FULL)]
    assert abs(counts[0] / counts[1] - 1) < 0.01


@pytest.mark.parametrize("name", language.PATTERNS)
def test_every_model_has_the_short_convolution(name):
    cache = language.build(name, language.WHOLE, 0).empty_cache(1)
    assert all(layer.tail is not None and layer.tail.shape[1] == language.CONVOLUTION - 1 for layer in cache.layers)


def test_without_the_delta_rule_the_strength_stays():
    names = {part: {name for name, _ in language.without(SIZE, part).named_parameters()} for part in language.PARTS}
    assert any(name.startswith("write.beta") for name in names["delta rule"])
    assert not any(name.startswith("write.beta") for name in names["delta rule and strength"])
    x, k, v = torch.randn(1, 3, 12), torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 5)
    write, delta = language.StrengthWrite(12, 2), DeltaWrite(12, 2)
    delta.load_state_dict(write.state_dict())
    rule = delta(x, k, v, None).rule
    assert torch.allclose(write(x, k, v, None).v, v * rule.beta[..., None])
