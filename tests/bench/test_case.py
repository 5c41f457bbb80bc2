"""Backends are right in every case that they cover, and what is required and not there is a refusal."""

import pytest
import torch

from rebracket.bench.benchmark import Reference
from rebracket.bench.case import Backend, NotCoveredError, prepare_torch, refusals, require, require_installed
from rebracket.ops.backend import INSTALLED
from tests.bench.planted import case_of, every_case


@pytest.mark.parametrize("backend", [*INSTALLED, "auto"])
@pytest.mark.parametrize("case", every_case(), ids=str)
def test_a_backend_is_right(backend, case):
    known = Reference(case)
    try:
        prepared = Backend(backend).prepare(case, known.inputs(), 1)
    except NotCoveredError as refusal:
        pytest.skip(str(refusal))
    made = prepared.run()
    assert max(known.errors(prepared.results(made)).values()) < 1e-5


def test_only_training_makes_a_graph():
    case = case_of("kda", "forward")
    prepared = prepare_torch("forward", case.inputs(), lambda x: x.q.requires_grad_() * 2, lambda out: {"out": out})
    assert not prepared.results(prepared.run())["out"].requires_grad


def test_training_gives_the_gradients_of_all_inputs_and_leaves_them_as_they_are():
    x = case_of("kda", "train").inputs()
    prepared = prepare_torch("train", x, lambda x: x.q * x.k * x.v * x.log_decay * x.beta[..., None], dict_of_out)
    for _ in range(2):
        found = prepared.results(prepared.run())
        assert list(found) == ["out", *(f"grad {name}" for name in ("q", "k", "v", "log_decay", "beta"))]
        torch.testing.assert_close(found["grad q"], x.weight * x.k * x.v * x.log_decay * x.beta[..., None])
    assert not x.q.requires_grad


def dict_of_out(out):
    return {"out": out}


def test_what_is_required_and_not_there_is_a_refusal():
    require(True, "fine")
    with pytest.raises(NotCoveredError, match="not so"):
        require(False, "not so")
    require_installed("torch", "pip install torch")
    with pytest.raises(NotCoveredError, match="^not installed: pip install abacus$"):
        require_installed("rebracket_abacus", "pip install abacus")
    with pytest.raises(NotCoveredError, match="does not cover"), refusals():
        raise ValueError("does not cover")
    with pytest.raises(KeyError), refusals():
        raise KeyError
