"""The claim about stability holds on a tiny grid, and is refuted by a wrong gate, another rule or too few digits."""

import pytest
import torch

from rebracket.lab import stability
from rebracket.lab.base.pairs import unit_vectors
from rebracket.nn import HeadNorm
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from tests.lab.measuring import judged

whole, read = stability.after, stability.outputs


def test_it_holds():
    verdict = judged("stability")
    assert verdict.passed, verdict.sentence


def in_bfloat16(state, k, v, rule):
    after = whole(state, k, v, rule)
    return after if k.dtype == torch.float64 else after.to(torch.bfloat16).to(torch.float32)


def longer(kept, exact, q):
    return read(kept, exact, 1.2 * q)


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("log_decay", lambda rule: None, "squared norm off its formula"),
        ("write", lambda rule: Additive(), "squared norm off its formula"),
        ("Delta", lambda beta: Delta(0.5), "squared norm off its formula"),
        ("after", in_bfloat16, "float32 error"),
        ("LONG", 0.9, "a of the delta rule with those"),
        ("DECAY", 0.999, "and with a decay"),
        ("HeadNorm", lambda V: torch.nn.Identity(), "mean square of it after the output norm"),
        ("HeadNorm", lambda V: HeadNorm(V, eps=0.1), "mean square of it after the output norm"),
        ("unit_vectors", lambda draw, *shape: unit_vectors(draw, *shape).abs(), "squared norm off its formula"),
        ("outputs", longer, "squared length of what is read"),
        ("rounding", lambda: 1.3e-3, "bfloat16 error of additive states"),
        ("drift", lambda cell: 1.66e-3, "bfloat16 error of additive states"),
    ],
    ids=[
        *("no gate", "delta is additive", "weak delta", "few digits", "short keys", "weak decay"),
        *("no output norm", "blunt output norm", "keys in one cone", "longer queries"),
        *("another rounding", "no drift"),
    ],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(stability, name, fault)
    verdict = judged("stability")
    assert not verdict.passed
    assert f"REFUTED: {what}" in verdict.sentence
