"""The claim about kernels holds on a tiny grid, and is refuted by features that are not what they should be."""

import pytest

from rebracket.features.favor import Favor
from rebracket.features.rff import Rff
from rebracket.features.taylor2 import Taylor2
from rebracket.lab import kernel
from tests.lab.measuring import judged

LEARNED = {"taylor2": 0.9, "performer": 0.7, "relu": 0.8, "gla": 1.0, "deltanet": 1.0, "adding": 1.0}
whole_rff, whole_taylor = Rff.features, Taylor2.features


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(kernel, "LEARNERS", 1)


def test_it_holds():
    verdict = judged("kernel")
    assert verdict.passed, verdict.sentence


def without_length(self, x):
    return self.dim_out**-0.5 * self.project(x * self.dim_in**-0.25).exp()


@pytest.mark.parametrize(
    ("kind", "fault", "what"),
    [
        (Favor, without_length, "variance of positive features"),
        (Rff, lambda self, x: whole_rff(self, 1.05 * x), "of trigonometric ones by"),
        (Taylor2, lambda self, x: whole_taylor(self, x)[..., : 1 + self.dim_in], "error of taylor2"),
    ],
    ids=["normalizer dropped", "5 % too long", "no products"],
)
def test_a_planted_fault_refutes_it(monkeypatch, kind, fault, what):
    monkeypatch.setattr(kernel, "COSINES", {"favor": (0,), "rff": (-1,)})
    monkeypatch.setattr(kernel, "taught", lambda name, seed: LEARNED[name])
    monkeypatch.setattr(kind, "features", fault)
    verdict = judged("kernel")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


@pytest.mark.parametrize(
    ("faults", "what"),
    [
        ({"deltanet": kernel.TAUGHT["relu"]}, "recall of trained states without a kernel"),
        ({"relu": kernel.TAUGHT["deltanet"]}, "its lead over the best map"),
    ],
    ids=["no good state", "a good state for a map"],
)
def test_another_state_refutes_it(monkeypatch, faults, what):
    trained = kernel.taught
    monkeypatch.setattr(kernel, "TAUGHT", kernel.TAUGHT | faults)
    monkeypatch.setattr(kernel, "taught", lambda name, seed: trained(name, seed) if name in faults else LEARNED[name])
    monkeypatch.setattr(kernel, "COSINES", {"favor": (0,), "rff": (-1,)})
    monkeypatch.setattr(kernel, "SAMPLES", {"tiny": (16, 32)})
    verdict = judged("kernel")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
