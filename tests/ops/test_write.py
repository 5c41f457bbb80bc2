"""What all write rules share: they are immutable, lose and gain the time axis, and name their tensors in errors."""

import dataclasses

import pytest
import torch

from rebracket.ops.write import Sizes, as_beta, check_beta, check_shape
from rebracket.testing.operators.recurrence import SHAPES, Draw, prototype, write_names

SIZES = Sizes(B=2, T=7, Hq=3, H=6, K=4, V=5)


def test_letters_are_sizes():
    assert SIZES.shape("B,T,Hq,K") == (2, 7, 3, 4)
    assert SIZES.shape("B,T*3,H,V") == (2, 21, 6, 5)


@pytest.mark.parametrize("name", write_names())
def test_rules_cannot_be_changed(name: str):
    rule = prototype(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.beta = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", write_names())
def test_every_tensor_is_visited_and_nothing_else_changes(name: str):
    rule = prototype(name)
    doubled = rule.map(lambda x: 2 * x)
    for field in dataclasses.fields(rule):  # type: ignore[arg-type]
        old, new = getattr(rule, field.name), getattr(doubled, field.name)
        assert torch.equal(new, 2 * old) if isinstance(old, torch.Tensor) else new == old


@pytest.mark.parametrize("name", write_names())
def test_rules_refuse_the_shapes_of_another_call_by_name(name: str):
    shape = SHAPES["plain"]
    rule = prototype(name)
    rule.check(shape.sizes)
    tensors = [x for x in vars(rule).values() if isinstance(x, torch.Tensor)]
    other = dataclasses.replace(shape, T=shape.T + 1)
    if tensors:
        names = "|".join(name for name, x in vars(rule).items() if isinstance(x, torch.Tensor))
        with pytest.raises(ValueError, match=rf"^({names}) must be"):
            rule.check(other.sizes)


@pytest.mark.parametrize("name", write_names())
def test_lowering_gives_writes_of_the_shapes_of_the_recurrence(name: str):
    sizes, rule = SHAPES["plain"].sizes, prototype(name)
    draw = Draw(SHAPES["plain"], 1)
    times = f"T*{rule.entries}"
    writes = rule.lower(draw.unit(f"B,{times},Hq,K"), draw.normal(f"B,{times},H,V"))
    steps = f"T*{writes.per_token}"
    assert writes.v.shape == sizes.shape(f"B,{steps},H,V")
    assert writes.k.shape in (sizes.shape(f"B,{steps},Hq,K"), sizes.shape(f"B,{steps},H,K"))
    assert (writes.r is not None) == rule.reads_back
    assert writes.r is None or writes.r.shape[:2] == writes.k.shape[:2]
    assert writes.beta is None or writes.beta.shape in (sizes.shape("H"), sizes.shape(f"B,{steps},H"))


def test_a_number_for_beta_is_not_rounded_to_a_short_dtype():
    v = torch.ones(1, 1, 2, 3, dtype=torch.bfloat16)
    assert as_beta(0.3, v).tolist() == [pytest.approx(0.3, abs=1e-7)] * 2
    assert as_beta(0.3, v.double()).dtype == torch.float64
    beta = torch.ones(2, dtype=torch.bfloat16)
    assert as_beta(beta, v) is beta


@pytest.mark.parametrize("beta", [0, 0.0, 1, 2.0, torch.ones(6), torch.ones(2, 7, 6)])
def test_good_strengths(beta: float | torch.Tensor):
    check_beta(beta, SIZES)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((2, 6, 7), "; this looks head-first: pass x.transpose(1, 2)"),
        ((2, 7, 6, 1), "; pass x.squeeze(-1)"),
        ((2, 7, 3), "; it is given per head of v: pass x.repeat_interleave(2, 2)"),
        ((2, 7, 5), ""),
        ((6,), ""),
    ],
)
def test_a_wrong_shape_gets_the_hint_that_fits(shape: tuple[int, ...], hint: str):
    with pytest.raises(ValueError, match="x") as caught:
        check_shape("x", torch.ones(shape), SIZES, "B,T,H")
    assert str(caught.value) == f"x must be [B,T,H] = [2, 7, 6], got {list(shape)}{hint}"
