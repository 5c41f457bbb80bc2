"""Splits spend the same bytes on other layers; the verdict holds for numbers as the pilot found them, and turns."""

from dataclasses import dataclass

import pytest

from rebracket import lab
from rebracket.lab import layers
from rebracket.lab.base.experiment import Result, mean_over_seeds
from rebracket.lab.base.pairs import generator
from tests.lab.drawn import assert_it_draws
from tests.lab.little_text import use_little_text

EXPERIMENT = lab.load("layers")
CELL = {"steps": 8, "rate": 0.01, "mixer": "gla", "depth": 3, "channels": 12, "spent": "evenly", "drawn": 2, "seed": 7}
SOUND = {("evenly", 6): 3.18, ("evenly", 12): 3.11, ("early", 12): 3.3, ("late", 12): 3.43, ("searched", 12): 3.05}


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)
    for name, value in {"D_MODEL": 24, "PARAMETERS": 30000, "VALUE_DIM": 12}.items():
        monkeypatch.setattr(layers, name, value)


def results_of(found):
    return [
        Result(
            {**CELL, "spent": spent, "channels": channels, "seed": seed},
            {"chosen by": 3.0, "bits": bits, "parameters": 100.0, "state bytes": 1000.0 * channels},
            0.1,
        )
        for (spent, channels), bits in found.items()
        for seed in range(3)
    ]


def verdict_of(found):
    return EXPERIMENT.verdict(mean_over_seeds(results_of(found)))


def test_it_holds_for_what_the_pilot_found_and_is_drawn():
    assert verdict_of(SOUND).passed
    assert_it_draws(EXPERIMENT, results_of(SOUND))


@pytest.mark.parametrize(
    ("which", "bits", "what"),
    [
        (("early", 12), 3.12, "bits per byte that early costs over evenly"),
        (("late", 12), 3.15, "bits per byte that late costs over evenly"),
        (("evenly", 6), 3.42, "bits per byte that late costs over fewer bytes"),
        (("searched", 12), 3.2, "bits per byte that the search costs over evenly"),
        (("searched", 12), 2.9, "bits per byte that the search costs over evenly"),
    ],
)
def test_the_verdict_turns_with_the_numbers(which, bits, what):
    assert f"REFUTED: {what}" in verdict_of({**SOUND, which: bits}).sentence


def test_splits_have_every_channel_once():
    found = {spent: layers.split(CELL, spent) for spent in (layers.EVENLY, layers.EARLY, layers.LATE)}
    assert found == {"evenly": (4, 4, 4), "early": (8, 2, 2), "late": (2, 2, 8)}
    drawn = {layers.random_split({"channels": 8, "depth": 3}, generator(i)) for i in range(99)}
    assert drawn == {(2, 2, 4), (2, 4, 2), (4, 2, 2), (2, 3, 3), (3, 2, 3), (3, 3, 2)}


@pytest.mark.parametrize("spent", [layers.EVENLY, layers.EARLY, layers.LATE])
def test_all_splits_have_the_same_bytes_and_parameters(spent):
    sizes = EXPERIMENT.measure({**CELL, "spent": spent, "steps": 1})
    assert sizes["state bytes"] == 2 * 12 * 12 * 4
    assert abs(sizes["parameters"] - 30000) <= 3 * 3 * 24


@dataclass(frozen=True)
class Found:
    """A model that is known by its split alone."""

    channels: tuple[int, ...]


def test_a_search_tries_each_split_for_half_as_long_and_takes_the_best(monkeypatch):
    tried = []

    def learned(cell, channels, steps, seed):
        tried.append((channels, steps, seed))
        return Found(channels), True

    monkeypatch.setattr(layers, "learned", learned)
    monkeypatch.setattr(layers, "held_out_bits", lambda model, half: abs(model.channels[0] - 8) + half)
    assert layers.searched({**CELL, "spent": "searched"}) == (8, 2, 2)
    assert {(steps, seed) for _, steps, seed in tried} == {(4, 7 + layers.SEARCH)}
    assert len(tried) == 3 + 2


def test_what_is_searched_is_what_is_trained():
    found = EXPERIMENT.measure({**CELL, "spent": "searched", "steps": 2})
    assert sum(found[f"channels of layer {i}"] for i in range(3)) == 12
