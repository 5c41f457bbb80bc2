"""Lightning's slopes, as ALiBi and MiniMax have them."""

import pytest
import torch

from rebracket.nn.decays.lightning import LightningDecay, slopes

EIGHT = [2.0**-h for h in range(1, 9)]


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (1, [2.0**-8]),
        (2, [2.0**-4, 2.0**-8]),
        (8, EIGHT),
        # Four of four heads, then every second of eight's.
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (12, [*EIGHT, 2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
    ],
)
def test_slopes(heads: int, wanted: list[float]):
    found = slopes(torch.arange(heads, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("layer", "weakening"), [(0, 1 + 1e-5), (1, 0.75 + 1e-5), (4, 1e-5)])
def test_later_layers_forget_less(layer: int, weakening: float):
    x = torch.zeros(1, 2, 3, dtype=torch.float64)
    found = LightningDecay(8, layer, 5)(x)
    torch.testing.assert_close(found, -weakening * torch.tensor(EIGHT, dtype=torch.float64), rtol=1e-12, atol=0)


def test_a_single_layer_is_the_first():
    x = torch.zeros(1, 2, 3)
    assert torch.equal(LightningDecay(2, 0, 1)(x), LightningDecay(2, 0, 9)(x))
