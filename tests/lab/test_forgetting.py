"""The claim about forgetting holds on a tiny grid, and is refuted by a wrong gate, its labels by a plain count."""

import collections
import functools

import pytest
import torch

from rebracket.lab import forgetting
from rebracket.lab.base.learning import UNLABELLED, Examples
from rebracket.lab.base.pairs import generator, stored
from rebracket.lab.forgetting import DELIMITER, FIRST, MARKED, MOST, SYMBOLS, log_decays, only, reader, segments
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged

TAUGHT, REMEMBERED = functools.cache(forgetting.read_segments), functools.cache(forgetting.remembered)
"""What a fault does not reach is measured once for all tests."""
READER, SEGMENTS = forgetting.reader, forgetting.segments


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
        ("stored", lambda k, v, write, log_decay: stored(k, v, write, log_decay - 0.002), "without a decay"),
        ("Additive", lambda: Delta(1.0), "ratio off the exact one"),
    ],
    ids=["gate twice", "no gate", "never without", "delta"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(forgetting, "read_segments", TAUGHT)
    monkeypatch.setattr(forgetting, name, fault)
    verdict = judged("forgetting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def frozen(gate: str, T: int, seed: int):
    """A model whose decay neither sees the tokens nor is trained: a random look at them would be enough."""
    model = READER(gate, T, seed)
    for name, weight in model.mixers()[0].named_parameters():
        if name.startswith("decay"):
            weight.requires_grad_(False).mul_(0 if name.endswith("step.weight") else 1)
    return model


def hidden(T: int, rows: int, draw) -> Examples:
    """Texts in which a delimiter looks like a question."""
    examples = SEGMENTS(T, rows, draw)
    tokens = examples.tokens.where(examples.tokens != forgetting.DELIMITER, forgetting.MOST)
    return Examples(tokens, examples.labels)


def blind(size):
    """The constant decay in the place of the learned one."""
    return forgetting.GATES["constant"](size)


@pytest.mark.parametrize(
    ("gate", "name", "fault", "what"),
    [
        ("learned", "reader", frozen, "left in a head at a delimiter"),
        ("learned", "segments", hidden, "learned decay right about the segment"),
        ("learned", "GATES", {**forgetting.GATES, "learned": blind}, "learned decay right about the segment"),
        ("fixed", "GATES", {**forgetting.GATES, "fixed": forgetting.GATES["learned"]}, "with decay fixed"),
    ],
    ids=["frozen gate", "hidden delimiter", "blind gate", "a fixed decay that is not"],
)
def test_a_wrong_gate_refutes_it(monkeypatch, gate, name, fault, what):
    """Only the model that the fault is meant for is trained with it."""
    taught = forgetting.read_segments

    def planted(which: str, T: int, steps: int, seed: int) -> dict[str, float]:
        if which != gate:
            return TAUGHT(which, T, steps, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forgetting, name, fault)
            return taught(which, T, steps, seed)

    monkeypatch.setattr(forgetting, "remembered", REMEMBERED)
    monkeypatch.setattr(forgetting, "read_segments", planted)
    verdict = judged("forgetting")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence


def answers(tokens: list[int]) -> list[int]:
    """One text, read token by token."""
    counts, marked, found = collections.Counter(), UNLABELLED, []
    for token in tokens:
        if token == DELIMITER:
            counts.clear()
        elif FIRST <= token < FIRST + SYMBOLS:
            counts[token] += 1
        elif token >= FIRST + SYMBOLS:
            marked = token
        ranked = [*counts.most_common(2), (UNLABELLED, 0), (UNLABELLED, 0)]
        most = ranked[0][0] if ranked[0][1] > ranked[1][1] else UNLABELLED
        found.append({MOST: most, MARKED: marked}.get(token, UNLABELLED))
    return found


def test_labels_are_those_of_a_count():
    examples = segments(77, 13, generator(5))
    assert examples.labels.tolist() == [answers(row) for row in examples.tokens.tolist()]
    assert set(segments(77, 99, generator(5)).tokens.unique().tolist()) == set(range(FIRST + 2 * SYMBOLS))


def test_the_questions_are_apart():
    examples = segments(77, 13, generator(5))
    most, marked = only(examples, MOST), only(examples, MARKED)
    assert torch.equal(most.labels.maximum(marked.labels), examples.labels)
    late = only(examples, MARKED, 50).labels
    assert (late[:, :50] == UNLABELLED).all()
    assert torch.equal(late[:, 50:], marked.labels[:, 50:])


def test_only_the_learned_decay_sees_the_tokens():
    tokens = segments(33, 2, generator(5)).tokens
    constant, learned = (log_decays(reader(gate, 33, seed=1), tokens) for gate in ("constant", "learned"))
    torch.testing.assert_close(constant, constant[:, :1].expand_as(constant))
    assert (learned / learned[:, :1] - 1).abs().max() > 0.01
