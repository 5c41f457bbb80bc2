"""The claim about sharpness holds on a tiny grid, and is refuted without the normalizer or by another map."""

import pytest

from rebracket.features.relu import Relu
from rebracket.features.taylor2 import Taylor2
from rebracket.lab import sharpness
from rebracket.ops.attention import linear_attention
from tests.lab.measuring import judged


def test_it_holds():
    verdict = judged("sharpness")
    assert verdict.passed, verdict.sentence


def unnormalized(q, k, v, *, normalize, causal):
    return linear_attention(q, k, v, causal=causal)


@pytest.mark.parametrize(
    ("where", "name", "fault", "what"),
    [
        (sharpness, "linear_attention", unnormalized, "Taylor weight off its formula"),
        (sharpness, "softmax_weights", lambda x: sharpness.weights(Taylor2(sharpness.DIM), x), "softmax weight off"),
        (Relu, "features", lambda self, x: (x - 0.1).relu(), "change of a homogeneous map"),
    ],
    ids=["normalizer dropped", "another kernel", "a threshold"],
)
def test_a_planted_fault_refutes_it(monkeypatch, where, name, fault, what):
    monkeypatch.setattr(where, name, fault)
    verdict = judged("sharpness")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
