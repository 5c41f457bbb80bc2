"""Stretches are pairs that compose: applied, joined and scanned they give the states that the operator gives."""

from itertools import pairwise

import pytest
import torch

import rebracket as rb
from rebracket.ops import segment
from rebracket.ops.state import State
from rebracket.testing.budgets import check, check_all, check_equal
from rebracket.testing.law import results
from rebracket.testing.operators.recurrence import Case, Sample, cases, draw

CASES = [case for case in cases() if not case.bonus]
CUTTABLE = [case for case in CASES if case.shape != "packed"]
CUTS = (0, 4, 4, 5, 17)


def of(s: Sample) -> rb.Segment:
    return rb.Segment.of(s.k, s.v, log_decay=s.log_decay, write=s.write, normalize=s.normalize, cu_seqlens=s.cu_seqlens)


def pieces(s: Sample) -> list[rb.Segment]:
    return [of(s.tokens(start, stop)) for start, stop in pairwise([*CUTS, s.T])]


def held(s: Sample) -> State:
    assert s.state is not None
    return s.state


def named(found: rb.Segment) -> dict[str, torch.Tensor]:
    return {"state.transition": found.transition} | {f"state.{name}": x for name, x in found.written.tensors().items()}


def states(state: State) -> dict[str, torch.Tensor]:
    return {f"state.{name}": x for name, x in state.tensors().items()}


def check_applied(case: Case) -> None:
    """The pair of a stretch moves any state as the stretch itself does."""
    s = draw(case)
    check_all(states(of(s).apply(held(s))), states(s.define().state), torch.float64)


def check_composed(case: Case) -> None:
    """The pairs of pieces, joined in any order of joining, are the pair of the whole."""
    s = draw(case)
    parts, whole = pieces(s), named(of(s))
    left, right = parts[0], parts[-1]
    for part in parts[1:]:
        left = segment.compose(left, part)
    for part in reversed(parts[:-1]):
        right = segment.compose(part, right)
    for way, found in {"left": named(left), "right": named(right)}.items():
        for name, x in found.items():
            check(f"from the {way}: {name}", x, whole[name], 1e-12)


def check_scanned(case: Case) -> None:
    """The states at the borders of pieces are those of a run that stops there."""
    s = draw(case)
    found = segment.scan(pieces(s), held(s))
    assert len(found) == len(CUTS) + 1
    for state, stop in zip(found, (*CUTS, s.T), strict=True):
        check_all(states(state), states(s.tokens(0, stop).define().state), torch.float64, f"at {stop}:")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_applied(case: Case):
    check_applied(case)


@pytest.mark.parametrize("case", CUTTABLE, ids=str)
def test_composed(case: Case):
    check_composed(case)


@pytest.mark.parametrize("case", CUTTABLE, ids=str)
def test_scanned(case: Case):
    check_scanned(case)


@pytest.mark.parametrize("case", [Case("delta", "channel"), Case("additive", "token", normalize=True)], ids=str)
def test_gradients_pass_through_a_pair(case: Case):
    def by_segment(s: Sample) -> rb.Output:
        first, second = of(s.tokens(0, 9)), of(s.tokens(9, s.T))
        state = segment.compose(first, second).apply(held(s))
        return rb.Output(state.memory.sum(), state)

    def whole(s: Sample) -> rb.Output:
        state = s.define().state
        return rb.Output(state.memory.sum(), state)

    check_all(results(by_segment, draw(case)), results(whole, draw(case)), torch.float64)


@pytest.mark.parametrize("write", ["additive", "delta"])
def test_autocast_does_not_round_a_pair(write: str):
    s = draw(Case(write, "channel", dtype=torch.float32)).tokens(0, 3)
    wanted = states(segment.compose(of(s), of(s)).apply(held(s)))
    with torch.autocast("cpu", torch.bfloat16):
        found = states(segment.compose(of(s), of(s)).apply(held(s)))
    for name, x in wanted.items():
        check_equal(name, found[name], x)


@pytest.mark.parametrize("write", ["additive", "delta", "gated_erase"])
def test_short_dtypes_give_float32_pairs(write: str):
    s = draw(Case(write, "token", dtype=torch.bfloat16))
    found, wanted = named(of(s)), named(of(s.to(torch.float64)))
    for name, x in found.items():
        assert x.dtype == torch.float32
        check(name, x, wanted[name], 4e-6)


def test_a_row_without_sequences_has_no_pairs():
    k, v = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 5)
    for log_decay in (None, torch.zeros(2), torch.zeros(1, 3, 2), torch.zeros(1, 3, 2, 4)):
        pair = rb.Segment.of(k, v, log_decay=log_decay, cu_seqlens=torch.tensor([0]))
        assert pair.transition.shape == (0, 2, 4)
        assert pair.written.memory.shape == (0, 2, 4, 5)


def test_a_pair_has_the_size_it_says():
    for write, entries in (("additive", 1), ("delta", 4)):
        s = draw(Case(write, "channel"))
        K = s.k.shape[-1]
        assert of(s).transition[0, 0].numel() == K * entries


def test_a_state_of_another_size_or_place_is_refused():
    pair = of(draw(Case("additive", "token")))
    N, H, K, V = pair.written.memory.shape
    for wrong in (rb.State.zeros(1, H, K, V), rb.State.zeros(N, H, K, 1), rb.State.zeros(N, 1, K, V)):
        with pytest.raises(ValueError, match=r"state.memory must be \[N,H,K,V\]"):
            pair.apply(wrong)
    with pytest.raises(ValueError, match="state.memory must be on cpu"):
        pair.apply(rb.State.zeros(N, H, K, V, device="meta"))


def test_pairs_of_different_rules_are_refused():
    first, second = (of(draw(Case(write, "token"))) for write in ("additive", "delta"))
    with pytest.raises(ValueError, match="segments must have transitions of one shape"):
        rb.compose(first, second)


def test_a_normalized_pair_needs_a_sum_of_keys():
    found = of(draw(Case("additive", "none", normalize=True)))
    with pytest.raises(ValueError, match="key_sum"):
        found.apply(State(found.written.memory))


@pytest.mark.parametrize("law", [check_applied, check_composed, check_scanned])
def test_a_transition_that_does_nothing_is_caught(law, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment, "move", lambda _, memory: memory)
    with pytest.raises(AssertionError):
        law(Case("delta", "token"))


def test_a_composition_in_the_wrong_order_is_caught(monkeypatch: pytest.MonkeyPatch):
    compose = segment.compose
    monkeypatch.setattr(segment, "compose", lambda first, second: compose(second, first))
    for write in ("additive", "delta"):
        with pytest.raises(AssertionError):
            check_composed(Case(write, "channel"))


def test_a_transition_without_decay_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment, "diagonal", lambda call: torch.ones_like(call.initial().memory[..., 0]))
    for law in (check_applied, check_composed, check_scanned):
        with pytest.raises(AssertionError):
            law(Case("additive", "head"))
