"""The claim about tracking holds on a tiny grid, and is refuted by other eigenvalues, another task or no training."""

import pytest
import torch

from rebracket.lab import tracking
from rebracket.lab.base.learning import Examples
from tests.lab.measuring import judged

whole, task = tracking.build, tracking.arithmetic


def test_it_holds():
    verdict = judged("tracking")
    assert verdict.passed, verdict.sentence


def test_the_task_is_the_recurrence_it_says():
    found = task(torch.Generator().manual_seed(0), 3, 9, 5)
    value = torch.zeros(3, dtype=torch.int64)
    for t, x in enumerate(found.tokens.unbind(1)):
        value = (x - value) % 5
        assert torch.equal(found.labels[:, t], value)


def test_modulo_2_it_is_parity():
    found = task(torch.Generator().manual_seed(0), 3, 9, 2)
    assert torch.equal(found.labels, (found.tokens % 2).cumsum(1) % 2)


def other_eigenvalues(beta_max):
    return lambda cell, seed: whole({**cell, "beta_max": beta_max}, seed)


def stateless(draw, rows, tokens, modulus):
    """The answer is in the token itself."""
    found = task(draw, rows, tokens, modulus)
    return Examples(found.tokens, found.tokens % modulus)


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("build", other_eigenvalues(1.0), "accuracy beyond, eigenvalues in [-1,1], parity"),
        ("build", other_eigenvalues(2.0), "accuracy beyond, eigenvalues in [0,1]"),
        ("arithmetic", stateless, "accuracy beyond, eigenvalues in [0,1]"),
        ("RATE", 1e-9, "accuracy beyond, eigenvalues in [-1,1], parity"),
    ],
    ids=["none is negative", "all may be negative", "nothing to track", "nothing learned"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(tracking, "STARTS", {2: 1})
    monkeypatch.setattr(tracking, name, fault)
    verdict = judged("tracking")
    assert what in {check.what for check in verdict.checks if not check.passed}  # from some starts parity fades: open
