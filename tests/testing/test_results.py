"""Results hold outputs, state and gradients against weights that every dtype holds exactly."""

import pytest
import torch

from rebracket.ops.state import Output, State
from rebracket.testing.law import cotangent, results
from rebracket.testing.operators.recurrence import Case, Sample, draw, exact


def test_results_have_every_name():
    found = results(Sample.define, draw(Case("delta", "token")))
    inputs = {"q", "k", "v", "log_decay", "write.beta", "state.memory"}
    assert found.keys() == {"out", "state.memory"} | {f"grad {name}" for name in inputs}
    normalized = results(Sample.define, draw(Case("additive", "none", normalize=True)))
    assert {"state.key_sum", "grad state.key_sum"} <= normalized.keys()


def test_gradients_of_some_inputs_only():
    found = results(Sample.define, draw(Case("delta", "token")), frozenset({"v"}))
    assert found.keys() == {"out", "state.memory", "grad v"}


def test_a_gradient_is_that_of_the_weighted_sum():
    s = draw(Case("additive", "none"))
    found = results(lambda x: Output(3 * x.v, State(x.v.sum() * torch.ones(2))), s)
    wanted = 3 * cotangent("out", s.v) + cotangent("state.memory", torch.ones(2)).sum()
    assert torch.allclose(found["grad v"], wanted)
    assert not found["grad q"].any()


def test_detached_results_are_a_fault():
    def detached(s):
        out, state = s.define()
        return Output(out.detach(), State(state.memory.detach()))

    with pytest.raises(AssertionError, match="no gradient"):
        results(detached, draw(Case("additive", "none")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_exact_in_every_dtype(dtype: torch.dtype):
    x = cotangent("out", torch.zeros(100))
    assert torch.equal(x.to(dtype).double(), x)


def test_exact_results_are_float64_on_rounded_inputs():
    found = exact(Case("additive", "none", dtype=torch.bfloat16))
    assert {x.dtype for x in found.values()} == {torch.float64}
    assert found is exact(Case("additive", "none", dtype=torch.bfloat16))
