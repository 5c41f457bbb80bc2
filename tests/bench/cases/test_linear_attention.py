"""Every head has the same inputs, its values times its own factor; the least work is what the formulas say."""

import pytest
import torch

from rebracket.base.tensors import named_tensors
from rebracket.bench.case import DTYPES, Mode, NotCoveredError
from rebracket.bench.cases.linear_attention import RULES, LinearAttentionCase
from rebracket.bench.cases.softmax_attention import SoftmaxAttentionCase
from rebracket.ops.backend import INSTALLED

SHAPE, TOKEN = (2, 7, 3, 5), (2, 1, 3, 5)
NAMES = [*RULES, "softmax"]


def case_of(name: str, shape: tuple[int, ...] = SHAPE, mode: Mode = "forward", dtype: torch.dtype = torch.float32):
    return (SoftmaxAttentionCase if name == "softmax" else LinearAttentionCase)(name, shape, mode, dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_head_has_the_same_inputs_and_its_factor(name, dtype):
    case = case_of(name, mode="train", dtype=dtype)
    one, every = named_tensors(case.draw()), named_tensors(case.inputs())
    assert one.keys() == every.keys()
    for key, x in every.items():
        wanted = one[key].expand_as(x)
        assert torch.equal(x, wanted * case.factors[:, None, :, None].to(dtype) if key == "v" else wanted)
        assert x.is_contiguous()
        assert x.dtype == dtype
        assert x.shape[:3] == SHAPE[:3]
    rule = RULES.get(name)
    shapes = {key: list(x.shape[3:]) for key, x in every.items() if key in ("log_decay", "beta")}
    decays = {"none": {}, "token": {"log_decay": []}, "channel": {"log_decay": [5]}}
    assert shapes == ({} if rule is None else decays[rule.decay] | ({"beta": []} if rule.erases else {}))


@pytest.mark.parametrize("shape", [*LinearAttentionCase.shapes["full"], SHAPE], ids=str)
def test_factors_differ_and_make_values_exact(shape):
    factors = case_of("kda", shape).factors
    assert factors.unique().numel() == shape[0] * shape[2]
    assert factors.min() == 1
    assert factors.max() < 2
    values = torch.randn(100).bfloat16()
    exact = values.double() * factors.double().view(-1, 1)
    assert torch.equal((values.float() * factors.view(-1, 1)).double(), exact)


@pytest.mark.parametrize("name", RULES)
def test_inputs_are_fit_for_the_rule(name):
    x, rule = case_of(name).inputs(), RULES[name]
    if rule.normalizes:
        assert min(x.q.min(), x.k.min()) > 0
    if rule.erases:
        torch.testing.assert_close(x.k.norm(dim=-1), torch.ones(2, 7, 3))
        assert x.beta is not None
        assert 0 < x.beta.min() < x.beta.max() < 1
    if x.log_decay is not None:
        assert x.log_decay.max() < 0


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_float32_state_is_there_in_decode_only_and_its_memory_has_the_factors(dtype):
    case = case_of("linear", TOKEN, "decode", dtype)
    state = case.inputs().state
    assert state is not None
    assert state.key_sum is not None
    factors = case.factors[..., None, None]
    torch.testing.assert_close(state.memory, state.memory[:1, :1] * factors, rtol=0, atol=0)
    torch.testing.assert_close(state.key_sum, state.key_sum[:1, :1].expand(2, 3, 5), rtol=0, atol=0)
    assert state.memory.dtype == torch.float32
    assert state.nbytes == case.work.state_nbytes
    assert case_of("kda").inputs().state is None


def test_the_least_work():
    def of(name, mode):
        work = case_of(name, (2, 10, 3, 5), mode).work
        return work.operations, work.nbytes

    assert of("simple_gla", "forward") == (60 * 4 * 25, 60 * 4 * (4 * 5 + 1))
    assert of("gla", "forward") == (60 * 4 * 25, 60 * 4 * (5 * 5))
    assert of("gated_delta", "forward") == (60 * 6 * 25, 60 * 4 * (4 * 5 + 2))
    assert of("kda", "train") == (3 * 60 * 6 * 25, 3 * 60 * 4 * (5 * 5 + 1))
    assert of("softmax", "forward") == (sum(4 * 5 * t for t in range(1, 11)) * 6, 60 * 4 * 4 * 5)
    token = case_of("delta", TOKEN, "decode").work
    assert token.nbytes == 2 * token.state_nbytes + 6 * 4 * (4 * 5 + 1)


def test_decode_is_in_place():
    case = case_of("kda", TOKEN, "decode")
    x = case.inputs()
    assert x.state is not None
    before = x.state.memory.clone()
    prepared = case.prepare("reference", x)
    found = prepared.results(prepared.run())
    assert found["state.memory"] is x.state.memory
    assert not torch.equal(before, x.state.memory)


def test_a_backend_that_is_not_there_is_a_refusal():
    with pytest.raises(NotCoveredError, match="must be auto or one of"):
        case_of("kda").prepare("abacus", case_of("kda").inputs())


def test_softmax_is_one_implementation_without_decode():
    assert case_of("softmax").backends() == ("softmax_attention",)
    assert case_of("kda").backends() == tuple(INSTALLED)
    assert "decode" not in SoftmaxAttentionCase.modes
