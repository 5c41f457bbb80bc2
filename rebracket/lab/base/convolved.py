"""Softmax attention behind the short convolution that linear layers have, for comparisons with them."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from rebracket.nn.cache import LayerCache
from rebracket.nn.convolution import ShortConvolution
from rebracket.nn.mixer import Mixer
from rebracket.ops.checks import Mode


@final
class Convolved(Mixer):
    """A mixer that reads its input through a short causal convolution.

    y = mixer(conv(x))

    Args:
        inner: the mixer, one without a convolution of its own.
        width: of the convolution in tokens.

    Example:
        >>> from rebracket.nn import MixerSize, presets
        >>> size = MixerSize(d_model=8, heads=2, key_heads=2, key_dim=4, value_dim=4)
        >>> mixer = Convolved(presets.make("softmax", size), 4)
        >>> y, cache = mixer(torch.randn(1, 6, 8))
        >>> mixer.step(torch.randn(1, 8), cache)[0].shape
        torch.Size([1, 8])
    """

    def __init__(self, inner: Mixer, width: int) -> None:
        super().__init__(inner.size)
        self.inner, self.convolution = inner, ShortConvolution(inner.size.d_model, width, None)

    def sequence(
        self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode
    ) -> tuple[Tensor, LayerCache]:
        y, tail = self.convolution(x, None if cache is None else cache.tail, cu_seqlens)
        before = None if cache is None else replace(cache, tail=None)
        y, after = self.inner(y, cache=before, cu_seqlens=cu_seqlens, mode=mode)
        return y, replace(after, tail=tail)

    def token(self, x: Tensor, cache: LayerCache, inplace: bool) -> tuple[Tensor, LayerCache]:
        y, cache = self.sequence(x.unsqueeze(1), cache, None, "auto")
        return y.squeeze(1), cache

    def empty_cache(
        self, rows: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LayerCache:
        weight = self.convolution.weight
        tail = torch.zeros(
            rows, self.convolution.width - 1, self.convolution.channels, dtype=dtype or weight.dtype, device=device
        )
        return replace(self.inner.empty_cache(rows, dtype=dtype, device=device), tail=tail)

    def state_nbytes(self, tokens: int) -> int:
        return self.inner.state_nbytes(tokens) + self.empty_cache(1, device="meta").tensors()["tail"].nbytes

    def reset_parameters(self) -> None:
        """Draws the convolution and the mixer again."""
        self.convolution.reset_parameters()
        self.inner.reset_parameters()
