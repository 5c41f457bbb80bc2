"""The claim about forgetting holds on a tiny grid, and is refuted by a wrong gate."""

import functools

import pytest

from rebracket.lab import forgetting
from rebracket.lab.base import segments
from rebracket.lab.base.learning import Examples
from rebracket.lab.base.memories import stored
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged

TAUGHT, REMEMBERED = functools.cache(forgetting.read_segments), functools.cache(forgetting.remembered)
"""What a fault does not reach is measured once for all tests."""
READER, SEGMENTS = segments.reader, segments.segments


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(forgetting, "PAIRS", 131072)


def test_it_holds(monkeypatch):
    monkeypatch.setattr(forgetting, "read_segments", TAUGHT)
    monkeypatch.setattr(forgetting, "remembered", REMEMBERED)
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
    monkeypatch.setattr(forgetting, "read_segments", TAUGHT)
    monkeypatch.setattr(forgetting, name, fault)
    verdict = judged("forgetting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def frozen(gate: str, T: int, seed: int):
    """A model whose decay is not trained."""
    model = READER(gate, T, seed)
    model.mixers()[0].get_submodule("decay").requires_grad_(False)
    return model


def hidden(T: int, rows: int, draw) -> Examples:
    """Texts in which a delimiter looks like a question."""
    examples = SEGMENTS(T, rows, draw)
    tokens = examples.tokens.where(examples.tokens != segments.DELIMITER, segments.MOST)
    return Examples(tokens, examples.labels)


def blind(size):
    """The constant decay in the place of the learned one."""
    return segments.GATES["constant"](size)


@pytest.mark.parametrize(
    ("gate", "module", "name", "fault", "what"),
    [
        ("learned", segments, "reader", frozen, "left in a head at a delimiter"),
        ("learned", segments, "segments", hidden, "learned decay right about the segment"),
        ("learned", segments, "GATES", {**segments.GATES, "learned": blind}, "learned decay right about the segment"),
        ("fixed", segments, "GATES", {**segments.GATES, "fixed": segments.GATES["learned"]}, "with decay fixed"),
    ],
    ids=["frozen gate", "hidden delimiter", "blind gate", "a fixed decay that is not"],
)
def test_a_wrong_gate_refutes_it(monkeypatch, gate, module, name, fault, what):
    """Only the model that the fault is meant for is trained with it."""
    taught = forgetting.read_segments

    def planted(which: str, T: int, steps: int, seed: int) -> dict[str, float]:
        if which != gate:
            return TAUGHT(which, T, steps, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, fault)
            return taught(which, T, steps, seed)

    monkeypatch.setattr(forgetting, "remembered", REMEMBERED)
    monkeypatch.setattr(forgetting, "read_segments", planted)
    verdict = judged("forgetting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
