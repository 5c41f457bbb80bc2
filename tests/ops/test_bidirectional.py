"""Time runs backwards inside every sequence and nowhere else, and what both directions read is taken once."""

import pytest
import torch

import rebracket as rb
from rebracket.ops import bidirectional
from rebracket.testing.budgets import check, check_equal
from rebracket.testing.law import Row
from rebracket.testing.operators.recurrence import Case, draw, recurrence
from rebracket.testing.recurrence.agreement import both_ways, square

OFFSETS = torch.tensor([0, 0, 3, 4, 4, 7])


def test_flipping_turns_every_sequence_and_leaves_the_padding():
    x = torch.arange(9.0).view(1, 9, 1, 1)
    found = bidirectional.flip(x, OFFSETS).flatten().tolist()
    assert found == [2, 1, 0, 3, 6, 5, 4, 7, 8]
    assert bidirectional.flip(x, None).flatten().tolist() == list(range(8, -1, -1))


@pytest.mark.parametrize("offsets", [None, OFFSETS, torch.tensor([0]), torch.tensor([0, 9])])
def test_flipping_twice_is_nothing(offsets: torch.Tensor | None):
    x = torch.randn(1, 9, 2, 3)
    check_equal("x", bidirectional.flip(bidirectional.flip(x, offsets), offsets), x)


def test_a_decay_per_head_has_no_direction():
    call = recurrence(draw(Case("additive", "head", "packed")))
    assert bidirectional.flipped(call).log_decay is call.log_decay
    assert bidirectional.flipped(recurrence(draw(Case("additive", "token", "packed")))).log_decay is not call.log_decay


@pytest.mark.parametrize("shape", ["plain", "packed"])
@pytest.mark.parametrize("normalize", [False, True])
def test_one_pass_is_both_directions(shape: str, normalize: bool):
    """Without decay the parallel mode reads a finished state; chunks read forward and backward."""
    s = both_ways(Case("additive", "none", shape, normalize=normalize))
    one, two = (s.run(Row(Case(), mode, None)) for mode in ("parallel", "chunk"))
    for name, x in one.state.tensors().items():
        check(name, two.state.tensors()[name], x, 1e-13)
    check("out", two.out, one.out, 1e-13)


def test_the_state_is_that_of_the_forward_direction():
    s = draw(Case("additive", "channel"))
    q, k, v = s.q, s.k, s.v
    both, forward = (rb.linear_attention(q, k, v, log_decay=s.log_decay, causal=x).state for x in (False, True))
    check("state", both.memory, forward.memory, 1e-14)


def test_a_token_alone_reads_itself_once():
    s = both_ways(Case("additive", "channel")).tokens(3, 4)
    check("out", s.run(Row(Case())).out, s.define().out, 1e-14)


def test_a_token_that_counts_itself_twice_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bidirectional, "itself", lambda call: torch.zeros_like(call.v))
    s = both_ways(Case("additive", "token"))
    with pytest.raises(AssertionError):
        check("out", s.run(Row(Case())).out, square(s).out, 1e-13)


def test_time_that_does_not_turn_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bidirectional, "flip", lambda x, _: x)
    s = both_ways(Case("additive", "none"))
    with pytest.raises(AssertionError):
        check("out", s.run(Row(Case())).out, square(s).out, 1e-13)
