"""Gates are projected without rounding; first weights have the spread they should."""

import copy

import pytest
import torch

from rebracket.nn.projections import GateProjection, LowRankProjection, Projection


@pytest.mark.parametrize("gate", [GateProjection(9, 4, bias=True), LowRankProjection(9, 3, 4, bias=True)])
def test_a_gate_is_not_rounded(gate: torch.nn.Module):
    x = torch.randn(5, 9)
    wanted = gate(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gate(x), wanted)
    assert gate(x.to(torch.bfloat16)).dtype == torch.float32


def test_a_gate_of_a_short_model_is_projected_in_float32():
    gate, x = GateProjection(9, 4).to(torch.bfloat16), torch.randn(5, 9).to(torch.bfloat16)
    assert torch.equal(gate(x), x.float() @ gate.weight.float().T)


def test_a_gate_needs_no_numbers_to_know_its_shape():
    assert GateProjection(9, 4).to("meta")(torch.empty(2, 9, device="meta")).shape == (2, 4)


def spread(weight: torch.Tensor) -> float:
    """The root mean square of a weight [out,in] by that of 1 / sqrt(in)."""
    return float(weight.detach().square().mean().sqrt()) * weight.shape[1] ** 0.5


def test_first_weights_keep_the_size_of_what_they_read():
    torch.manual_seed(0)
    assert spread(Projection(200, 100).weight) == pytest.approx(1, rel=0.02)
    assert spread(Projection(200, 100, 0.25).weight) == pytest.approx(0.25, rel=0.02)
    gate = GateProjection(200, 100, bias=True)
    gate.reset_parameters()
    assert spread(gate.weight) == pytest.approx(1, rel=0.02)
    assert not gate.bias.any()


def test_drawing_again_clears_the_bias_and_keeps_the_spread():
    torch.manual_seed(0)
    gate, wide = LowRankProjection(90, 30, 400, bias=True), Projection(200, 100, 0.25)
    with torch.no_grad():
        gate.up.bias.fill_(1.0)
        for weight in (gate.down.weight, gate.up.weight, wide.weight):
            weight.zero_()
    gate.reset_parameters()
    wide.reset_parameters()
    assert not gate.up.bias.any()
    assert spread(gate.down.weight) == pytest.approx(1, rel=0.05)
    assert spread(gate.up.weight) == pytest.approx(1, rel=0.05)
    assert spread(wide.weight) == pytest.approx(0.25, rel=0.02)


def test_quantize_dynamic_says_that_it_replaces_nothing():
    """It sets `qconfig` on every module that it sees; other layers of the same model are replaced."""
    model = torch.nn.Sequential(Projection(4, 4), torch.nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="this Projection stays float") as said:
        found = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert len([x for x in said if "Projection" in str(x.message)]) == 1
    assert type(found[0]) is Projection
    assert type(found[1]) is not torch.nn.Linear
    x = torch.randn(3, 4)
    assert torch.equal(found[0](x), model[0](x))
    copy.deepcopy(found)
