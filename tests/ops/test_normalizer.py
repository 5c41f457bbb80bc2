"""A normalizer is one more value column of ones, nothing else."""

import torch

from rebracket.ops import normalizer
from rebracket.ops.state import State
from rebracket.testing.budgets import check, check_equal
from rebracket.testing.operators.recurrence import Case, draw, recurrence


def test_the_counted_call_has_one_more_value_and_its_sum_of_keys_in_the_state():
    s = draw(Case("additive", "token", normalize=True))
    call = recurrence(s)
    counted = normalizer.counted(call)
    assert (counted.sizes.V, counted.normalize, counted.scale) == (call.sizes.V + 1, False, 1.0)
    assert bool((counted.v[..., -1] == 1).all())
    assert s.state is not None
    assert s.state.key_sum is not None
    assert counted.state is not None
    check_equal("state", counted.state.memory[..., -1], s.state.key_sum)


def test_the_sum_of_keys_is_the_decayed_sum_of_keys():
    """z_t = Diag(a_t) z_{t-1} + k_t."""
    s = draw(Case("additive", "channel", normalize=True))
    assert s.log_decay is not None
    assert s.state is not None
    z = s.state.key_sum
    assert z is not None
    for t in range(s.T):
        z = s.log_decay[:, t].exp() * z + s.k[:, t]
    found = s.define().state.key_sum
    assert found is not None
    check("key_sum", found, z, 1e-14)


def test_outputs_are_weighted_means_of_values():
    """Positive features, no state: every output lies between the values that came before."""
    s = draw(Case("additive", "token", normalize=True))
    out = s.map(lambda name, x: torch.zeros_like(x) if name.startswith("state.") else x).define().out
    highest, lowest = s.v.cummax(1).values, s.v.cummin(1).values
    assert bool(((out <= highest + 1e-12) & (out >= lowest - 1e-12)).all())
    check("first", out[:, 0], s.v[:, 0], 1e-14)


def test_division_is_zero_where_the_sum_is_and_so_is_its_gradient():
    sums = torch.tensor([[6.0, 2.0], [5.0, 0.0], [-4.0, -2.0]], requires_grad=True)
    out, state = normalizer.divided(sums, State(torch.zeros(1, 1, 1, 2)))
    check_equal("out", out, torch.tensor([[3.0], [0.0], [2.0]]))
    assert state.memory.shape == (1, 1, 1, 1)
    out.sum().backward()
    assert sums.grad is not None
    check_equal("grad", sums.grad, torch.tensor([[0.5, -1.5], [0.0, 0.0], [-0.5, 1.0]]))
