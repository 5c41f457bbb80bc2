"""The claim about language models holds on a tiny grid, and is refuted by another layer, other sizes or no training."""

import sysconfig
from pathlib import Path

import pytest
import torch

from rebracket.lab import language
from rebracket.nn import presets
from rebracket.nn.mixer import MixerSize
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


def unfitted(name, part, seed):
    return language.sized(name, part, language.MLP_DIM, seed)


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("PATTERNS", dict.fromkeys(language.PATTERNS, ("linear_transformer",)), "linear_transformer above"),
        ("build", unfitted, "parameters apart"),
        ("RATE", 1e-9, "linear_transformer above"),
    ],
    ids=["all one layer", "unequal sizes", "nothing learned"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(language, name, fault)
    verdict = judged("language")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def test_a_training_that_breaks_is_charged_a_uniform_guess(monkeypatch):
    def broken(self):
        raise FloatingPointError

    monkeypatch.setattr(Trainer, "advance", broken)
    numbers = language.Language().measure({"model": "gla", "without": "nothing", "steps": 4, "seed": 0})
    assert {numbers[f"bits {stage}"] for stage in range(1, language.STAGES + 1)} == {8.0}


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
