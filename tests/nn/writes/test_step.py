"""The step of Mamba-2's gate is the strength of its writes, and its weights stand in a layer once."""

import copy

import pytest
import torch

from rebracket.nn.decays.mamba2 import Mamba2Decay
from rebracket.nn.writes.step import StepWrite
from tests.nn.tiny import mixer, stir, tokens

ONES = torch.ones(1, 1, 1, 1)


def test_values_are_multiplied_by_the_step():
    decay = Mamba2Decay(7, 4).double()
    stir(decay)
    x, v = tokens(), torch.randn(*tokens().shape[:2], 4, 5, dtype=torch.float64)
    wanted = (1 + torch.exp(x @ decay.step.weight.T + decay.dt_bias)).log()
    torch.testing.assert_close(StepWrite(decay)(x, v, v, decay(x)).v, wanted[..., None] * v)
    torch.testing.assert_close(decay(x), -decay.A_log.exp() * wanted)


def test_the_step_survives_a_decay_that_erases():
    decay = Mamba2Decay(1, 1)
    with torch.no_grad():
        decay.step.weight.fill_(1.0)
    v = torch.ones(1, 2, 1, 1)
    written = StepWrite(decay)(v[..., 0], v, v, decay(torch.tensor([[[1e4], [-1e4]]])))
    torch.testing.assert_close(written.v.flatten(), torch.tensor([1e4, 0.0]), rtol=1e-3, atol=0)


def test_a_layer_without_the_decay_is_refused():
    with pytest.raises(ValueError, match="log_decay must be that of the shared decay, got None"):
        StepWrite(Mamba2Decay(1, 1))(ONES[0], ONES, ONES, None)


def test_a_layer_holds_the_weights_once():
    layer = mixer("mamba2")
    assert {key for key in layer.state_dict() if key.startswith(("decay", "write"))} == {
        "decay.A_log",
        "decay.dt_bias",
        "decay.step.weight",
    }


def test_a_copy_of_a_layer_shares_nothing_with_it():
    layer, x = mixer("mamba2"), tokens()
    before, twin = layer(x)[0], copy.deepcopy(layer)
    assert torch.equal(twin(x)[0], before)
    stir(layer)
    assert torch.equal(twin(x)[0], before)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x)[0], layer(x)[0])
    assert not torch.equal(twin(x)[0], before)


def test_gradients_go_through_both_uses_of_the_step():
    layer, x = mixer("mamba2"), tokens()
    layer(x)[0].sum().backward()
    alone = mixer("mamba2")
    parameters = dict(alone.named_parameters())
    swapped = {key: p.detach().clone().requires_grad_() for key, p in parameters.items()}
    torch.func.functional_call(alone, swapped, (x,))[0].sum().backward()
    for key, p in layer.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(swapped[key].grad, p.grad, rtol=1e-12, atol=1e-12)
