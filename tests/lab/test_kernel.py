"""The claim about kernels holds on a tiny grid, and is refuted by features that are not what they should be."""

import pytest

from rebracket.features.favor import Favor
from rebracket.features.rff import Rff
from rebracket.features.taylor2 import Taylor2
from rebracket.lab import kernel
from tests.lab.measuring import judged

LEARNED = {"taylor2": 0.8, "favor": 0.7, "relu": 0.9}


def made_up(name, by, steps, seed):
    """What trained layers recall: a map by its normalizer less than by the norm."""
    return LEARNED[name] + 0.001 * seed if by == kernel.NORMALIZER else 1.0


whole_rff, whole_taylor = Rff.features, Taylor2.features


def test_what_is_not_learned_holds(monkeypatch):
    monkeypatch.setattr(kernel, "taught", made_up)
    verdict = judged("kernel")
    assert verdict.passed, verdict.sentence


def test_layers_learn_and_one_without_a_norm_learns_less():
    norm, normalizer, softmax = (
        kernel.taught(*x, 300, 0) for x in (("relu", "norm"), ("relu", "normalizer"), (kernel.SOFTMAX, ""))
    )
    assert min(norm, softmax) > 0.95
    assert normalizer < norm


def without_length(self, x):
    return self.dim_out**-0.5 * self.project(x * self.dim_in**-0.25).exp()


@pytest.mark.parametrize(
    ("kind", "fault", "what"),
    [
        (Favor, without_length, "variance of positive features"),
        (Rff, lambda self, x: whole_rff(self, 1.05 * x), "variance of trigonometric ones"),
        (Taylor2, lambda self, x: whole_taylor(self, x)[..., : 1 + self.dim_in], "error of taylor2"),
    ],
    ids=["normalizer dropped", "5 % too long", "no products"],
)
def test_a_planted_fault_refutes_it(monkeypatch, kind, fault, what):
    monkeypatch.setattr(kernel, "COSINES", {"favor": (0,), "rff": (-1,)})
    monkeypatch.setattr(kernel, "taught", made_up)
    monkeypatch.setattr(kind, "features", fault)
    verdict = judged("kernel")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


@pytest.mark.parametrize(
    ("faults", "what"),
    [
        ({("deltanet", "norm"): 0.9, (kernel.DELTA, "norm"): 0.9}, "recall without a kernel"),
        ({("taylor2", "normalizer"): 1.0}, "recall of a map above itself"),
        ({("relu", "norm"): 0.91}, "recall of relu above"),
    ],
    ids=["no good state", "a normalizer that is no worse", "a kernel that counts"],
)
def test_another_recall_refutes_it(monkeypatch, faults, what):
    monkeypatch.setattr(
        kernel, "taught", lambda name, by, steps, seed: faults.get((name, by), made_up(name, by, steps, seed))
    )
    monkeypatch.setattr(kernel, "COSINES", {"favor": (0,), "rff": (-1,)})
    monkeypatch.setattr(kernel, "SAMPLES", {"tiny": (16, 32)})
    verdict = judged("kernel")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


@pytest.mark.parametrize(("name", "by"), [("taylor2", "norm"), ("favor", "normalizer"), (kernel.DELTA, "norm")])
def test_trained_layers_are_what_their_cell_says(name, by):
    from rebracket.nn.mixer import MixerSize

    mixer = kernel.mixer(name, by, MixerSize(d_model=16, heads=1, key_heads=1, key_dim=8, value_dim=32))
    assert mixer.empty_cache(1).state.tensors()["memory"].shape[2] in (8, 10)
    assert (mixer.normalize, mixer.norm is None) == (by == "normalizer", by == "normalizer")
