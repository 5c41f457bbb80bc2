"""The claim about rewriting holds on a tiny grid, and is refuted by what it excludes."""

import pytest

from rebracket.lab import rewriting
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(rewriting, "PAIRS", 8192)


def test_it_holds():
    verdict = judged("rewriting")
    assert verdict.passed, verdict.sentence


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("Delta", lambda beta: Additive(), "delta accuracy of the newest"),
        ("Additive", lambda: Delta(1.0), "additive accuracy"),
        (
            "resembling",
            lambda draw, N, n, cosine: rewriting.unit_vectors(draw, N, n, rewriting.K),
            "additive error of like keys",
        ),
    ],
    ids=["delta is additive", "additive is delta", "keys not alike"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(rewriting, name, fault)
    verdict = judged("rewriting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def test_keys_resemble_each_other_as_much_as_asked():
    k = rewriting.resembling(rewriting.generator(0), 200, 8, 0.3)
    cosines = k @ k.mT
    assert float(cosines.diagonal(dim1=-2, dim2=-1).mean()) == pytest.approx(1)
    assert float((cosines.sum() - 200 * 8) / (200 * 8 * 7)) == pytest.approx(0.3, abs=0.01)
