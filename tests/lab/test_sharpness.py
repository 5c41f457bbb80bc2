"""The claim about sharpness holds on a tiny grid, and is refuted without the normalizer or by another map."""

import pytest

from rebracket.features.relu import Relu
from rebracket.lab import sharpness
from rebracket.ops.attention import linear_attention
from tests.lab.measuring import judged


def test_it_holds():
    verdict = judged("sharpness")
    assert verdict.passed, verdict.sentence


def unnormalized(q, k, v, *, normalize, causal):
    return linear_attention(q, k, v, causal=causal)


def swapped(name, q, k):
    """Softmax attention is the Taylor map under another name."""
    return whole("taylor2" if name == sharpness.SOFTMAX else name, q, k)


def causal(q, k, v, *, normalize, causal):
    """Every token sees those before it only."""
    return linear_attention(q, k, v, normalize=normalize, causal=True)


whole = sharpness.weights


@pytest.mark.parametrize(
    ("where", "name", "fault", "what"),
    [
        (sharpness, "linear_attention", unnormalized, "Taylor weight off its formula"),
        (sharpness, "linear_attention", causal, "trained weight of a map over its bound"),
        (sharpness, "weights", swapped, "softmax weight off"),
        (Relu, "features", lambda self, x: (x - 0.1).relu(), "change of a homogeneous map"),
        (Relu, "features", lambda self, x: x.relu() + 1, "weight of relu and its square, keys along the axes"),
        (sharpness, "STEPS", 3, "trained weight of relu over that bound"),
        (sharpness, "along_axes", sharpness.directions, "weight of relu and its square, keys along the axes"),
    ],
    ids=["no normalizer", "fewer rivals", "another kernel", "a threshold", "never 0", "untrained", "all turned"],
)
def test_a_planted_fault_refutes_it(monkeypatch, where, name, fault, what):
    monkeypatch.setattr(where, name, fault)
    verdict = judged("sharpness")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
