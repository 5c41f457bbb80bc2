"""The exact results are those of the formulas, token by token and head by head, and what is wrong is far from them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from rebracket.base.tensors import map_tensors, named_tensors
from rebracket.bench.benchmark import TOLERANCES, Reference
from rebracket.bench.case import Case, Results
from rebracket.bench.cases import softmax_attention
from rebracket.bench.cases.linear_attention import RULES, LinearAttentionCase
from tests.bench.planted import FAULTS, case_of, every_case

T = 70


def recurrence(case: Case, x: Any) -> Results:
    """All heads, as the recurrence is written."""
    assert isinstance(case, LinearAttentionCase)
    rule, (B, T, H, D) = case.rule, case.shape
    memory = torch.zeros(B, H, D, D, dtype=x.q.dtype) if x.state is None else x.state.memory.double()
    key_sum = torch.zeros(B, H, D, dtype=x.q.dtype) if x.state is None or x.state.key_sum is None else x.state.key_sum
    outs = []
    for t in range(T):
        q, k, v = x.q[:, t], x.k[:, t], x.v[:, t]
        if x.log_decay is not None:
            factor = x.log_decay[:, t].exp()
            memory = memory * (factor[..., None] if rule.decay == "channel" else factor[..., None, None])
        if x.beta is not None:
            v = x.beta[:, t, :, None] * (v - torch.einsum("bhkv,bhk->bhv", memory, k))
        memory, key_sum = memory + k[..., None] * v[..., None, :], key_sum + k
        read = torch.einsum("bhkv,bhk->bhv", memory, q)
        outs.append(read / (q * key_sum).sum(-1, keepdim=True) if rule.normalizes else read / D**0.5)
    state = {"state.memory": memory} | ({"state.key_sum": key_sum} if rule.normalizes else {})
    return {"out": torch.stack(outs, 1)} | (state if case.mode == "decode" else {})


def softmax(case: Case, x: Any) -> Results:
    scores = torch.einsum("bihd,bjhd->bhij", x.q, x.k) / x.q.shape[-1] ** 0.5
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return {"out": torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~past, -torch.inf).softmax(-1), x.v)}


def convolution(case: Case, x: Any) -> Results:
    B, T, D = case.shape
    tail = torch.zeros(B, 3, D, dtype=x.x.dtype) if x.tail is None else x.tail
    seen = torch.cat([tail, x.x], 1)
    out = silu(torch.stack([(seen[:, t : t + 4] * x.filters.T).sum(1) for t in range(T)], 1))
    return {"out": out, "tail": seen[:, -3:]}


FORMULAS: dict[str, Callable[[Case, Any], Results]] = {
    **dict.fromkeys(RULES, recurrence),
    "softmax": softmax,
    "convolution": convolution,
}
"""What each case must compute, as it is written in the literature; a new operator needs one too."""


def expected(case: Case) -> Results:
    def double(name: str, x: Tensor) -> Tensor:
        return x.double().requires_grad_(name != "weight" and case.mode == "train")

    x = map_tensors(case.inputs(), double)
    made = FORMULAS[case.name](case, x)
    if case.mode != "train":
        return made
    leaves = {name: t for name, t in named_tensors(x).items() if name != "weight"}
    grads = torch.autograd.grad(made["out"], list(leaves.values()), x.weight)
    return {"out": made["out"]} | {f"grad {name}": g for name, g in zip(leaves, grads, strict=True)}


def longer() -> list[Case]:
    """Every case, over more tokens than a chunk has."""
    return [replace(x, shape=(2, T, *x.shape[2:])) if x.mode != "decode" else x for x in every_case()]


@pytest.mark.parametrize("case", longer(), ids=str)
def test_the_exact_results_are_those_of_the_formula(case):
    found = expected(case)
    errors = Reference(case).errors(found)
    assert errors.keys() == found.keys()
    assert max(errors.values()) < 1e-12


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("case", longer(), ids=str)
def test_what_is_wrong_is_far_from_them(case, fault):
    assert max(Reference(case).errors(fault(expected(case))).values()) > TOLERANCES[torch.float32]


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_the_blocks_of_softmax_make_no_difference(mode, monkeypatch):
    case = replace(case_of("softmax", mode), shape=(2, T, 3, 4))
    whole = case.exact()
    for block in (1, 64, 69, 70):
        monkeypatch.setattr(softmax_attention, "BLOCK", block)
        for name, x in case.exact().items():
            torch.testing.assert_close(x, whole[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", [case for case in longer() if case.mode == "train"], ids=str)
def test_what_is_merely_rounded_passes(case, dtype):
    case = replace(case, dtype=dtype)
    prepared = case.prepare("reference", case.inputs())
    worst = max(Reference(case).errors(prepared.results(prepared.run())).values())
    assert 1e-9 < worst < TOLERANCES[dtype]
