"""First weights by width: every projection keeps the size of its input, those of the residual stream share it."""

import pytest

from rebracket.lab.base.learning import model_without_mlps


@pytest.mark.parametrize("d_model", [32, 128])
def test_first_weights_go_by_the_inputs_of_each_layer(d_model):
    layers = 3 * [{"mixer": "kda", "heads": 2, "key_dim": 16, "value_dim": 16}]
    model = model_without_mlps(layers, vocabulary=50, d_model=d_model, context=8, seed=0)
    assert float(model.embed.weight.detach().std()) == pytest.approx(0.2, rel=0.01)
    mixer = model.mixers()[0]
    weights = dict(mixer.named_parameters())
    for name in ("project", "decay.step.down", "decay.step.up"):
        weight = weights[f"{name}.weight"]
        assert float(weight.detach().std()) == pytest.approx(weight.shape[1] ** -0.5, rel=0.01), name
    assert float(weights["out.weight"].detach().std()) == pytest.approx((32 * 6) ** -0.5, rel=0.01)
