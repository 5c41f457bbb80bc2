"""Gates are projected without rounding; first weights have the spread they should."""

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


def test_first_weights():
    torch.manual_seed(0)
    assert abs(Projection(200, 100).weight.std() - 0.02) < 0.001
    assert abs(Projection(200, 100, 0.5).weight.std() - 0.5) < 0.01
    gate = GateProjection(200, 100, bias=True)
    assert abs(gate.weight.std() - 0.02) < 0.001
    assert not gate.bias.any()


def test_drawing_again_clears_the_bias_and_keeps_the_spread():
    torch.manual_seed(0)
    gate, wide = LowRankProjection(20, 30, 40, bias=True), Projection(200, 100, 0.5)
    with torch.no_grad():
        gate.up.bias.fill_(1.0)
        for weight in (gate.down.weight, gate.up.weight, wide.weight):
            weight.zero_()
    gate.reset_parameters()
    wide.reset_parameters()
    assert not gate.up.bias.any()
    assert all(abs(weight.std() - 0.02) < 0.005 for weight in (gate.down.weight, gate.up.weight))
    assert abs(wide.weight.std() - 0.5) < 0.01
