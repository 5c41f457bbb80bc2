"""Tiny layers for the laws: every size another number, every weight far from where it starts."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from rebracket.nn import Mixer, MixerSize, presets

B, T = 3, 11
SIZE = MixerSize(d_model=7, heads=4, key_heads=2, key_dim=6, value_dim=5, layer=1, layers=3)


def stir(module: nn.Module, seed: int = 0) -> None:
    """Moves every weight away from its first value, so that no part of a layer is nearly constant."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.dtype))


def mixer(
    name: str,
    size: MixerSize = SIZE,
    dtype: torch.dtype = torch.float64,
    chosen: Mapping[str, object] = MappingProxyType({}),
) -> Mixer:
    torch.manual_seed(0)
    layer = presets.make(name, size, chosen).to(dtype)
    stir(layer)
    return layer


def tokens(rows: int = B, count: int = T, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, count, SIZE.d_model, generator=draw, dtype=torch.float64).to(dtype)


def gradients(module: nn.Module, y: Tensor) -> dict[str, Tensor]:
    """The gradient of a fixed random reading of y to every weight."""
    names, weights = zip(*module.named_parameters(), strict=True)
    reading = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(y.dtype)
    return dict(zip(names, torch.autograd.grad((y * reading).sum(), weights), strict=True))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], rtol: float = 1e-9, atol: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
