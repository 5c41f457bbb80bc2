"""The truth is the recurrence, token by token and head by head, and what is not the truth is far from it."""

import pytest
import torch
from torch import Tensor

from rebracket.bench import truth
from rebracket.bench.cases import LINEAR_RULES, SOFTMAX, Case, Inputs, Rule, Shape, inputs
from rebracket.bench.own import Ours, Softmax
from rebracket.bench.truth import LIMITS, Truth
from tests.bench.planted import FAULTS

LONG, TOKEN = Shape(2, 70, 3, 4), Shape(2, 1, 3, 4)


def token_by_token(rule: Rule, x: Inputs) -> dict[str, Tensor]:
    """All heads, as the recurrence is written."""
    B, T, H, D = x.q.shape
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
    return {"out": torch.stack(outs, 1)} | state


def softmax(x: Inputs) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", x.q, x.k) / x.q.shape[-1] ** 0.5
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~past, -torch.inf).softmax(-1), x.v)


def expected(case: Case) -> dict[str, Tensor]:
    x = inputs(case).map(Tensor.double).leaves()
    made = {"out": softmax(x)} if case.rule is SOFTMAX else token_by_token(case.rule, x)
    if case.mode == "train":
        leaves = x.differentiated()
        grads = torch.autograd.grad(made["out"], list(leaves.values()), x.weight)
        return {"out": made["out"]} | {f"grad {name}": g for name, g in zip(leaves, grads, strict=True)}
    return made if case.mode == "decode" else {"out": made["out"]}


def cases() -> list[Case]:
    over_time = [Case(rule, LONG, mode) for rule in (*LINEAR_RULES, SOFTMAX) for mode in ("forward", "train")]
    return over_time + [Case(rule, TOKEN, "decode") for rule in LINEAR_RULES]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.rule.name} {case.mode}")
def test_the_truth_of_one_head_is_that_of_all(case):
    found = expected(case)
    errors = Truth.of(case).errors(found)
    assert errors.keys() == found.keys()
    assert max(errors.values()) < 1e-12


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.rule.name} {case.mode}")
def test_what_is_wrong_is_far_from_it(case, fault):
    errors = Truth.of(case).errors(fault(expected(case)))
    assert max(errors.values()) > LIMITS[torch.float32]


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_the_blocks_of_softmax_are_no_part_of_it(mode, monkeypatch):
    case = Case(SOFTMAX, LONG, mode)
    whole = Truth.of(case).one
    for block in (1, 64, 69, 70):
        monkeypatch.setattr(truth, "BLOCK", block)
        for name, x in Truth.of(case).one.items():
            torch.testing.assert_close(x, whole[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("rule", [*LINEAR_RULES, SOFTMAX], ids=lambda rule: rule.name)
def test_what_is_merely_rounded_passes(rule, dtype):
    case = Case(rule, LONG, "train", dtype)
    entrant = Softmax() if rule is SOFTMAX else Ours("reference")
    attempt = entrant.prepare(case, inputs(case), 1)
    worst = max(Truth.of(case).errors(attempt.results(attempt.run())).values())
    assert 1e-9 < worst < LIMITS[dtype]
