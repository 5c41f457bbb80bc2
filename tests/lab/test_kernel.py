"""The claim about kernels holds on a tiny grid, and is refuted by features that are not what they should be."""

import pytest

from rebracket.features.favor import Favor
from rebracket.features.rff import Rff
from rebracket.features.taylor2 import Taylor2
from rebracket.lab import kernel
from tests.lab.measuring import judged

whole_rff, whole_taylor = Rff.features, Taylor2.features


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
    monkeypatch.setattr(kind, "features", fault)
    verdict = judged("kernel")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
