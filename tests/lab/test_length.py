"""What theory says of long texts holds on a tiny grid, what pilots said holds of made-up ones; faults refute both."""

import pytest
import torch

from rebracket import lab
from rebracket.lab import length
from rebracket.lab.base import text
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.nn import decays
from rebracket.nn.mixer import MixerSize
from tests.lab.drawn import assert_it_draws, measured
from tests.lab.little_text import use_little_text

EXPERIMENT = lab.load("length")
SIZE = MixerSize(d_model=12, heads=2, key_heads=2, key_dim=4, value_dim=5)


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)
    for name, value in {"D_MODEL": 24, "PARAMETERS": 25000, "KEY_DIM": 12, "REACH": 16}.items():
        monkeypatch.setattr(length, name, value)
    monkeypatch.setattr(length, "STEPS", {"tiny": 10})
    for name in ("TOKENS", "SHORTER"):
        monkeypatch.setattr(length, name, {"tiny": 1024})


def theory(results):
    """The checks whose bounds come from a theory."""
    checks = EXPERIMENT.verdict(mean_over_seeds(results)).checks
    return {check.what: check.outcome for check in checks if not check.source.startswith("pilot")}


def test_what_theory_says_holds_and_is_drawn():
    results = measured("length")
    assert set(theory(results).values()) == {"held"}
    assert_it_draws(EXPERIMENT, results)


def test_a_floor_that_is_none_refutes_it(monkeypatch):
    monkeypatch.setattr(length, "FlooredDecay", lambda inner, floor: inner)
    assert theory(measured("length"))["slope of the norm of a sum"] == "refuted"


def made_up(model, floor, at_end, slope):
    cell = {"model": model, "floor": floor, "steps": 3, "rate": 0.1, "tokens": 512}
    numbers = {"chosen by": 2.0, "parameters": 100.0, "slope": slope, "excess to 256": 0.0, "excess to 512": at_end}
    return [Result({**cell, "seed": seed}, numbers, 0.1) for seed in range(3)]


SOUND = {
    ("softmax", 0.0): (0.05, 0.0),
    ("window", 0.0): (-0.01, 0.0),
    ("linear_transformer", 0.0): (0.07, 0.98),
    ("gla", 0.0): (-0.01, 0.01),
    ("gla", 1.0): (0.03, 1.0),
}


@pytest.mark.parametrize(
    ("which", "instead", "what"),
    [
        (None, (), ""),
        (("window", 0.0), (0.03, 0.0), "what settled states and windows lose"),
        (("gla", 0.0), (-0.01, 0.3), "slope of the norm where decays see the tokens"),
        (("softmax", 0.0), (0.0, 0.0), "what softmax loses"),
        (("linear_transformer", 0.0), (0.0, 0.98), "what linear_transformer loses"),
        (("gla", 1.0), (-0.01, 1.0), "what a decay that may not forget loses more"),
    ],
)
def test_the_verdict_turns_with_the_numbers(which, instead, what):
    found = {**SOUND, **({which: instead} if which else {})}
    results = [result for (model, floor), numbers in found.items() for result in made_up(model, floor, *numbers)]
    verdict = EXPERIMENT.verdict(mean_over_seeds(results))
    assert verdict.passed == (which is None)
    assert f"REFUTED: {what}" in verdict.sentence or which is None


@pytest.mark.parametrize("floor", [0.3, 0.9, 1.0])
def test_no_token_leaves_less_than_the_floor(floor):
    inner, x = decays.make("gla", SIZE), 9 * torch.randn(1, 7, 12)
    left, before = (decay(x).exp() for decay in (length.FlooredDecay(inner, floor), inner))
    assert (left >= floor - 1e-6).all()
    assert torch.allclose(left, floor + (1 - floor) * before)


def test_models_are_what_their_name_says():
    kinds = {
        name: [(x.mixer, dict(x.options)) for x in length.build(name, 0.0, 0).config.layers]
        for name in ("kda", "window", "hybrid", "hybrid, window")
    }
    window = ("softmax", {"window": 16})
    assert kinds["kda"] == 2 * [("kda", {})]
    assert kinds["window"] == [window, window]
    assert kinds["hybrid"] == [("gated_deltanet", {}), ("softmax", {})]
    assert kinds["hybrid, window"] == [("gated_deltanet", {}), window]


def test_what_is_read_on_is_compared_with_the_same_tokens_read_afresh(monkeypatch):
    monkeypatch.setattr(length, "train", lambda *args: True)
    monkeypatch.setattr(length, "read_on", lambda model, texts, piece: begun_afresh(model, texts))
    numbers = EXPERIMENT.measure({"model": "window", "floor": 0.0, "steps": 1, "rate": 0.1, "tokens": 256, "seed": 0})
    assert {abs(x) < 1e-5 for name, x in numbers.items() if name.startswith("excess")} == {True}


def begun_afresh(model, texts):
    nats = text.read_afresh(model, texts)
    return [(piece, model.empty_cache(1)) for piece in nats.split(text.CONTEXT, 1)]
