"""The claim about cost holds on a tiny grid, and is refuted by chunks as long as the text, or a state that grows.

States are measured; operations are counted for seconds, and bytes of tensors for those of the process, so that nothing
else that runs can fail a test.
"""

from dataclasses import replace

import pytest
import torch

from rebracket.lab import cost
from rebracket.ops.attention import explain, linear_attention
from rebracket.ops.softmax import KeyValues
from rebracket.testing.memory import peak_tensor_nbytes
from tests.lab.measuring import judged


def operations(case):
    name, T = case
    if name == "softmax":
        return T * T * (cost.K + cost.V)
    (way,) = (way for way in cost.WAYS if way.name == name)
    x = torch.zeros(1, 1, 1, 1)
    q, v = x.expand(1, T, 1, cost.K), x.expand(1, T, 1, cost.V)
    plan = explain(q, q, v, normalize=True, mode=way.mode, backend=way.backend)
    return plan.costs[plan.mode].operations


core_seconds = cost.timed


@pytest.fixture(autouse=True)
def counting(monkeypatch):
    monkeypatch.setattr(cost, "timed", lambda calls: {case: float(operations(case)) for case in calls})
    monkeypatch.setattr(cost, "added", lambda call: float(peak_tensor_nbytes(call)))


def test_it_holds():
    verdict = judged("cost")
    assert verdict.passed, verdict.sentence


def planted(monkeypatch, name, fault):
    monkeypatch.setattr(cost, name, fault)
    verdict = judged("cost")
    assert not verdict.passed
    return verdict.sentence


def test_chunks_as_long_as_the_text_refute_it(monkeypatch):
    whole = replace(cost.CHUNK, mode="parallel")
    monkeypatch.setitem(cost.LONGEST, "tiny", {**cost.LONGEST["tiny"], "chunk": 4096})
    monkeypatch.setattr(cost, "CHUNK", whole)
    sentence = planted(monkeypatch, "WAYS", (*cost.WAYS[:3], whole, cost.FASTEST))
    assert "REFUTED: slope of the time of chunk" in sentence, sentence
    assert "REFUTED: slope of the memory of chunk" in sentence, sentence
    assert "REFUTED: T from which chunk beats softmax" in sentence, sentence


def keeping_everything(q, k, v, **options):
    """The right outputs, and a state that holds all keys and values."""
    return linear_attention(q, k, v, **options)._replace(state=KeyValues(k, v, torch.tensor([k.shape[1]])))


def test_a_state_that_grows_refutes_it(monkeypatch):
    assert "REFUTED: largest state over smallest" in planted(monkeypatch, "linear_attention", keeping_everything)


def test_the_clock_tells_core_seconds():
    found = core_seconds(cost.calls_of({cost.SOFTMAX: (3, 5)}, 0))
    assert list(found) == [("softmax", 3), ("softmax", 5)]
    assert all(0 < x < 10 for x in found.values())
