"""The claim about forgetting holds on a tiny grid, and is refuted by a wrong gate."""

import pytest

from rebracket.lab import forgetting
from rebracket.lab.base.memories import stored
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(forgetting, "PAIRS", 131072)


def test_it_holds():
    verdict = judged("forgetting")
    assert verdict.passed, verdict.sentence


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("stored", lambda k, v, write, log_decay: stored(k, v, write, 2 * log_decay), "ratio off"),
        ("stored", lambda k, v, write, log_decay: stored(k, v, write), "ratio off"),
        ("Additive", lambda: Delta(1.0), "and off the exact ratio"),
    ],
    ids=["gate twice", "no gate", "delta"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(forgetting, name, fault)
    verdict = judged("forgetting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
