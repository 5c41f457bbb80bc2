"""The claim about capacity holds on a tiny grid, and is refuted by what it excludes."""

import pytest
import torch

from rebracket.features.elu1 import Elu1
from rebracket.features.taylor2 import Taylor2
from rebracket.lab import capacity
from rebracket.lab.base.pairs import accuracy, generator, squared_error, stored, unit_vectors
from rebracket.lab.capacity import additive_accuracy, delta_error, least_squares
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(capacity, "PAIRS", 8192)
    monkeypatch.setattr(capacity, "CROSSED", 2048)


def only(monkeypatch, *maps):
    monkeypatch.setattr(capacity, "COSINES", {name: capacity.COSINES[name] for name in maps})


def test_it_holds():
    verdict = judged("capacity")
    assert verdict.passed, verdict.sentence


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("Delta", lambda beta: Additive(), "delta error"),
        ("Delta", lambda beta: Delta(0.9 * beta), "delta error"),
        ("Additive", lambda: Delta(1.0), "additive error"),
        ("least_squares", lambda k, v: k.mT @ v, "least-squares error"),
        ("PASSES", 1, "20 delta passes"),
        ("unit_vectors", lambda draw, *shape: torch.randn(shape, generator=draw).relu(), "additive error"),
    ],
    ids=["delta is additive", "weak delta", "additive is delta", "no least squares", "one pass", "keys in one cone"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    only(monkeypatch, "identity")
    monkeypatch.setattr(capacity, name, fault)
    verdict = judged("capacity")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


whole_taylor = Taylor2.features


@pytest.mark.parametrize(
    ("place", "fault", "what"),
    [
        ((Elu1, "features"), lambda self, x: x, "rms cosine of a map's keys"),
        ((Taylor2, "features"), lambda self, x: whole_taylor(self, x)[..., : 1 + self.dim_in], "rms cosine of a map"),
        ((capacity, "normalize"), lambda x, dim: x / x.shape[dim] ** 0.5, "error with a map's keys"),
        ((capacity, "VALUES"), 2, "error with a map's keys"),
    ],
    ids=["not positive", "no products", "keys of any length", "few values"],
)
def test_a_fault_in_a_map_refutes_it(monkeypatch, place, fault, what):
    only(monkeypatch, "elu1", "taylor2")
    monkeypatch.setattr(capacity, "COUNTS", {"tiny": (32, 64, 128)})
    monkeypatch.setattr(*place, fault)
    verdict = judged("capacity")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def test_the_formula_of_accuracy_is_what_one_measures_and_can_fail():
    draw = generator(9)
    k, v = unit_vectors(draw, 40, 128, 32), unit_vectors(draw, 40, 128, 48)
    found = accuracy(k @ stored(k, v, Additive()), v, torch.arange(128))
    assert abs(found - additive_accuracy(128, 32, 48)) < 0.05
    assert abs(found - additive_accuracy(128, 48, 32)) < 0.05  # K and V count alike
    assert abs(found - additive_accuracy(128, 32, 32)) > 0.05


def test_least_squares_recalls_all_where_there_are_no_more_pairs_than_rows():
    draw = generator(1)
    k, v = unit_vectors(draw, 2, 3, 4), unit_vectors(draw, 2, 3, 5)
    assert squared_error(k @ least_squares(k, v), v) < 1e-10


def test_the_recursion_is_exact_for_orthogonal_like_ends():
    assert delta_error(1, 7) == pytest.approx(0)
    assert delta_error(100_0, 5) == pytest.approx(
        2 - 2 * 5 / 1000, rel=0.02
    )  # all but the newest are noise of length 1
