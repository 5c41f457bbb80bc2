"""DeltaNet, against its recurrence written out."""

import pytest
import torch

from tests.nn.presets.literal import convolved, flat, heads_of, kept, normed, recurrence, sigmoid, unit
from tests.nn.tiny import mixer, tokens


@pytest.mark.parametrize("chosen", [{}, {"beta_max": 2.0}])
def test_it_is_the_delta_rule(chosen: dict[str, float]):
    layer, x = mixer("deltanet", chosen=chosen), tokens(1)
    w = layer.state_dict()
    assert w["convolution.weight"].shape[1] == 4
    q, k, v = heads_of(convolved(x[0] @ w["project.weight"].T, w["convolution.weight"]))
    beta = chosen.get("beta_max", 1.0) * sigmoid(x[0] @ w["write.beta.weight"].T)
    out = recurrence(unit(q), unit(k), v, kept(x[0]), beta)
    wanted = flat(normed(out, w["norm.weight"]), w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)
