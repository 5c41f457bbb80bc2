"""Samples are well conditioned, the same every time, and cover every axis; a rule without one is told."""

import math
import pkgutil

import pytest
import torch

from rebracket.ops import writes
from rebracket.ops.writes import delta
from rebracket.testing.law import Row
from rebracket.testing.operators.recurrence import (
    DECAYS,
    LOW,
    SHAPES,
    Case,
    Draw,
    cases,
    draw,
    drawn,
    prototype,
    write_names,
)

CASES = list(cases())


def test_the_rules_are_the_files():
    assert set(write_names()) == {module.name for module in pkgutil.iter_modules(writes.__path__)}


@pytest.mark.parametrize("name", write_names())
def test_a_sample_of_a_rule_is_that_rule_and_passes_its_own_checks(name: str):
    rule = prototype(name)
    rule.check(SHAPES["plain"].sizes)
    assert type(rule).__module__ == f"{writes.__name__}.{name}"


def test_a_rule_without_a_sample_says_what_to_write(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(delta, "drawn")
    with pytest.raises(LookupError, match=r"writes\.delta .* give it `def drawn\(draw: Drawing\) -> Delta`"):
        drawn("delta", Draw(SHAPES["plain"], 0))


@pytest.mark.parametrize("name", SHAPES)
def test_all_sizes_of_a_shape_differ(name: str):
    shape = SHAPES[name]
    heads = {shape.H} if shape.offsets else {shape.B, shape.H}
    sizes = [*heads, shape.T, shape.K, shape.V]
    assert len(set(sizes)) == len(sizes)
    assert all(shape.T % chunk for chunk in (16, 7))


def test_a_shape_is_grouped_and_one_is_packed_with_empty_sequences_and_a_tail():
    assert any(shape.H > shape.Hq > 1 for shape in SHAPES.values())
    offsets = SHAPES["packed"].offsets
    assert offsets is not None
    lengths = torch.tensor(offsets).diff().tolist()
    assert {0, 1} <= set(lengths)
    assert max(lengths) > 16
    assert offsets[-1] < SHAPES["packed"].T


def test_the_cases_are_the_product_of_the_axes():
    axes = {(case.write, case.decay, case.shape) for case in CASES}
    assert len(axes) == len(write_names()) * len(DECAYS) * len(SHAPES)
    for flag in ("normalize", "bonus"):
        flagged = [case for case in CASES if getattr(case, flag)]
        assert len(flagged) == len(DECAYS) * len(SHAPES)
        assert {case.write for case in flagged} == {"additive"}


def test_the_same_case_is_the_same_sample_and_another_is_another():
    case = Case("delta", "token")
    first, second = draw(case).tensors(), draw(case).tensors()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["q"], draw(Case("delta", "channel")).q)


@pytest.mark.parametrize("dtype", LOW)
def test_a_dtype_only_rounds(dtype: torch.dtype):
    case = Case("gated_erase", "channel")
    exact = draw(case).tensors()
    short = draw(Case("gated_erase", "channel", dtype=dtype)).tensors()
    assert {name: x.dtype for name, x in short.items() if x.dtype != dtype and dtype != torch.float32} == (
        {} if dtype == torch.float32 else {"state.memory": torch.float32}
    )
    assert all(torch.equal(short[name], x.to(short[name].dtype)) for name, x in exact.items())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_are_well_conditioned(case: Case):
    out, state = draw(case).run(Row(case, "auto", None, "auto"))
    assert 0.1 < out.abs().amax() < 30
    assert 0.1 < state.memory.abs().amax() < 30


def test_flushes_hold_both_kinds_of_erasing_gate():
    for decay in ("token_flush", "channel_flush"):
        gates = draw(Case("additive", decay)).log_decay
        assert gates is not None
        assert bool((gates == -math.inf).any())
        assert bool((gates == -1e4).any())


def test_tokens_cut_everything_that_has_a_time_axis():
    s = draw(Case("delta_product", "token", bonus=False))
    cut = s.tokens(3, 10).tensors()
    assert {name: x.shape[1] for name, x in cut.items() if s.entries(name, x)} == {
        "q": 7,
        "k": 14,
        "v": 14,
        "log_decay": 7,
        "write.beta": 14,
    }
    assert torch.equal(cut["k"], s.k[:, 6:20])


def test_rows_cut_the_batch_and_the_state():
    s = draw(Case("delta", "head")).rows(1, 2)
    assert {x.shape[0] for name, x in s.tensors().items() if name != "log_decay"} == {1}


def test_leaves_collect_gradients_by_name():
    s = draw(Case("additive", "head", bonus=True)).leaves(frozenset({"bonus", "state.memory"}))
    assert {name for name, x in s.tensors().items() if x.requires_grad} == {"bonus", "state.memory"}
