"""The claim about the state holds on a tiny grid, and is refuted where states, splits, features or decays are not used.

Training is measured, once for all tests; what times would show is made up.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rebracket import lab
from rebracket.lab import state
from rebracket.lab.base.experiment import Cell, Result, mean_over_seeds
from rebracket.lab.base.learning import UNLABELLED
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.running import Job, measure
from rebracket.lab.base.verdict import Check, Verdict

EXPERIMENT = lab.load("state")
SETTING = state.Setting("gla", "", True, (2, 6), 5, 16, 3, 2, 4, 64)


def made_up(sides, seed):
    found = {8: (900.0, 18.0, 544.0), 16: (600.0, 17.0, 1600.0)}
    rates = {f"{what} {side}": found[side][i] for side in sides for i, what in enumerate(("read", "step", "bytes"))}
    return {**rates, **{f"operations {side}": 4.1 * side**2 for side in sides}, "power": 0.9}


def measured(cells: Sequence[Cell]) -> list[Result]:
    return mean_over_seeds([measure(Job(EXPERIMENT, cell)) for cell in cells])


@pytest.fixture(scope="module")
def sound():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "speeds", made_up)
        patch.setattr(state, "searched", lambda setting, drawn, seed: setting)
        return measured(EXPERIMENT.cells("tiny"))


def test_nothing_is_refuted(sound):
    verdict = EXPERIMENT.verdict(sound)
    assert verdict.outcome != "refuted", verdict.sentence
    assert all(check.source for check in verdict.checks)


def judged(sound: Sequence[Result], part: str, *which: Cell) -> Verdict:
    """The verdict on everything as it should be, but for some cells that are measured again with a fault."""
    cells = [
        x for x in EXPERIMENT.cells("tiny") if x["part"] == part and any(one.items() <= x.items() for one in which)
    ]
    again = {tuple(r.cell.items()): r for r in measured(cells)}
    assert again
    verdict = EXPERIMENT.verdict([again.get(tuple(r.cell.items()), r) for r in sound])
    assert not verdict.passed
    return verdict


def check(verdict: Verdict, what: str) -> Check:
    """The only check whose name begins so."""
    (found,) = (x for x in verdict.checks if x.what.startswith(what))
    return found


whole, parted = state.built, state.split


@pytest.mark.parametrize(
    ("part", "which", "fault", "what"),
    [
        ("size", {"K": 8}, {"keys": (1,)}, "gain from the smallest state"),
        ("shape", {"K": 8}, {"keys": (1,)}, "gain of K = 8 over the fewest keys"),
        ("map", {"feature": "taylor2"}, {"feature": "elu1"}, "gain of the Taylor map"),
        ("decay", {"decays": 1}, {"decays": False}, "gain of the decay in a small state"),
    ],
)
def test_a_model_that_is_not_what_its_cell_says_does_not_hold(monkeypatch, sound, part, which, fault, what):
    """On two seeds it may be open instead of refuted, but the gain is gone."""
    monkeypatch.setattr(state, "built", lambda setting, seed: whole(replace(setting, **fault), seed))
    faulty = check(judged(sound, part, which), what)
    assert faulty.outcome != "held"
    assert faulty.found < check(EXPERIMENT.verdict(sound), what).found - 0.1


def test_splits_that_are_swapped_turn_the_gain_around(monkeypatch, sound):
    monkeypatch.setattr(state, "split", lambda total, layers, spent: parted(total, layers, spent)[::-1])
    swapped = check(judged(sound, "layers", {"spent": "early"}, {"spent": "late"}), "gain of early over late")
    assert swapped.found == pytest.approx(-check(EXPERIMENT.verdict(sound), "gain of early over late").found)


def test_times_that_do_not_grow_refute_it(monkeypatch, sound):
    monkeypatch.setattr(state, "speeds", lambda sides, seed: dict.fromkeys(made_up(sides, seed), 0.1))
    sentence = judged(sound, "speed", {}).sentence
    assert "REFUTED: operations a token over K V" in sentence
    assert "REFUTED: power of the state" in sentence


def test_a_search_tries_each_split_for_half_as_long_and_takes_the_best(monkeypatch):
    tried = []
    monkeypatch.setattr(state, "learned", lambda setting, seed: tried.append(setting) or setting)
    monkeypatch.setattr(state, "label_accuracy", lambda model, examples: -abs(model.keys[0] - 5))
    found = state.searched(SETTING, 30, 7)
    assert found == replace(SETTING, keys=(5, 3))
    assert {x.keys for x in tried} == {(i, 8 - i) for i in range(1, 8)}
    assert {x.steps for x in tried} == {2}


def test_splits_have_every_channel_once():
    assert [state.split(8, 4, spent) for spent in state.SPENT] == [(2, 2, 2, 2), (5, 1, 1, 1), (1, 1, 1, 5)]
    drawn = {state.random_split(5, 3, generator(i)) for i in range(99)}
    assert drawn == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}


def test_texts_stand_one_after_the_other():
    found = state.task(SETTING, 3, 4, generator(0))
    assert found.tokens.shape == (4, 26)
    assert ((found.labels != UNLABELLED).unflatten(1, (2, 13)).sum(-1) == 3).all()
    assert (found.tokens.unflatten(1, (2, 13))[..., 0] == SETTING.vocabulary).all()


def test_models_are_what_their_setting_says():
    model = state.built(SETTING, 0)
    assert [(layer.key_dim, layer.value_dim) for layer in model.config.layers] == [(2, 5), (6, 5)]
    assert all(mixer.decay is not None for mixer in model.mixers())
    assert all(mixer.decay is None for mixer in state.built(replace(SETTING, decays=False), 0).mixers())


def test_reading_and_steps_are_timed(monkeypatch):
    monkeypatch.setattr(state, "LONG", 8)
    found = state.speeds([3, 5], 0)
    kinds = ("read", "step", "bytes", "operations")
    assert set(found) == {"power", *(f"{kind} {side}" for kind in kinds for side in (3, 5))}
    assert all(x > 0 for name, x in found.items() if name != "power")
    assert found["operations 5"] == 4 * 25 + 10  # decay, write and read, and what grows with K alone
    state.one_by_one(state.built(SETTING, 0), torch.zeros(state.ROWS, 8, dtype=torch.int64))
