"""Every head has the same pattern, its values times its own factor; the least work is what the formulas say."""

import pytest
import torch

from rebracket.bench import cases
from rebracket.bench.cases import RULES, SOFTMAX, Case, Shape, factors, inputs, pattern

SHAPE, TOKEN = Shape(2, 7, 3, 5), Shape(2, 1, 3, 5)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype", cases.DTYPES.values(), ids=cases.DTYPES)
def test_every_head_is_the_pattern_with_its_factor(rule, dtype):
    case = Case(rule, SHAPE, "train", dtype)
    one, every, scale = pattern(case), inputs(case), factors(SHAPE)
    for name, x in every.differentiated().items():
        wanted = one.differentiated()[name].expand_as(x)
        assert torch.equal(x, wanted * scale[:, None, :, None].to(dtype) if name == "v" else wanted)
        assert x.is_contiguous()
        assert x.dtype == dtype
    assert torch.equal(every.weight, one.weight.expand(2, 7, 3, 5))
    assert {name: list(x.shape[3:]) for name, x in every.differentiated().items() if name not in "qkv"} == (
        {"none": {}, "token": {"log_decay": []}, "channel": {"log_decay": [5]}}[rule.decay]
        | ({"beta": []} if rule.erases else {})
    )


@pytest.mark.parametrize("shape", [*cases.SHAPES, *cases.DECODE_SHAPES, SHAPE], ids=str)
def test_factors_differ_and_make_values_exact(shape):
    scale = factors(shape)
    assert scale.unique().numel() == shape.heads
    assert scale.min() == 1
    assert scale.max() < 2
    values = torch.randn(100).bfloat16()
    exact = values.double() * scale.double().view(-1, 1)
    assert torch.equal((values.float() * scale.view(-1, 1)).double(), exact)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_inputs_are_fit_for_the_rule(rule):
    x = inputs(Case(rule, SHAPE, "forward"))
    if rule.normalizes:
        assert min(x.q.min(), x.k.min()) > 0
    if rule.erases:
        torch.testing.assert_close(x.k.norm(dim=-1), torch.ones(2, 7, 3))
        assert x.beta is not None
        assert 0 < x.beta.min() < x.beta.max() < 1
    if x.log_decay is not None:
        assert x.log_decay.max() < 0


def test_a_state_is_there_in_decode_only_and_its_memory_has_the_factors():
    case = Case(RULES["linear"], TOKEN, "decode")
    state = inputs(case).state
    assert state is not None
    assert state.key_sum is not None
    scale = factors(TOKEN)[..., None, None]
    torch.testing.assert_close(state.memory, state.memory[:1, :1] * scale, rtol=0, atol=0)
    torch.testing.assert_close(state.key_sum, state.key_sum[:1, :1].expand(2, 3, 5), rtol=0, atol=0)
    assert state.nbytes == case.state_nbytes
    assert inputs(Case(RULES["kda"], TOKEN, "forward")).state is None


def test_leaves_are_apart_from_what_they_were_made_of():
    x = inputs(Case(RULES["kda"], SHAPE, "train"))
    leaves = x.leaves()
    assert all(leaf.requires_grad for leaf in leaves.differentiated().values())
    assert not any(given.requires_grad for given in x.differentiated().values())
    assert leaves.weight is x.weight


def test_the_least_work():
    def of(rule, mode):
        case = Case(rule, Shape(2, 10, 3, 5), mode)
        return case.operations, case.nbytes

    assert of(RULES["simple_gla"], "forward") == (60 * 4 * 25, 60 * 4 * (4 * 5 + 1))
    assert of(RULES["gla"], "forward") == (60 * 4 * 25, 60 * 4 * (5 * 5))
    assert of(RULES["gated_delta"], "forward") == (60 * 6 * 25, 60 * 4 * (4 * 5 + 2))
    assert of(RULES["kda"], "train") == (3 * 60 * 6 * 25, 3 * 60 * 4 * (5 * 5 + 1))
    assert of(SOFTMAX, "forward") == (sum(4 * 5 * t for t in range(1, 11)) * 6, 60 * 4 * 4 * 5)
    token = Case(RULES["delta"], Shape(2, 1, 3, 5), "decode")
    assert token.nbytes == 2 * token.state_nbytes + 6 * 4 * (4 * 5 + 1)


@pytest.mark.parametrize("text", ["1x2x3", "1x2x3x4x5", "1x0x3x4", "axbxcxd", "1X2x3x4", ""])
def test_a_shape_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="a shape is BxTxHxD"):
        Shape.parse(text)
    assert str(Shape.parse("12x3x4x5")) == "12x3x4x5"
