"""The softmax-attention layer, for comparison and for hybrids."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from rebracket.base.checks import whole
from rebracket.nn.cache import LayerCache
from rebracket.nn.mixer import Mixer, MixerSize, rows_of
from rebracket.nn.positions import positions
from rebracket.nn.projections import Projection, residual_gain
from rebracket.nn.rotary import Rotary
from rebracket.ops.checks import Mode, check_mode
from rebracket.ops.program import Attend, Builder, Value
from rebracket.ops.softmax import KeyValues, softmax_attention


@final
class SoftmaxAttention(Mixer):
    """Softmax attention with rotary positions, over everything before or over a window.

    y_t = W_o sum_j softmax_j(q_t . k_j / sqrt(K)) v_j,  j <= t, and j > t - window if there is one

    Here `heads` counts the heads of q, `key_heads` those of k and v: query head h reads key head
    h // (heads // key_heads).

    Args:
        size: the sizes; key_dim must be even.
        rotary: turns q and k by their position.
        window: tokens that are read back, the present one included, >= 1; None for all.

    Raises:
        ValueError: If window is below 1.

    Cost: that of the projections, and T (K + V) multiply-adds a token and head; the cache grows by
    key_heads (K + V) numbers a token, up to the window.

    Source: Vaswani et al. 2017; Su et al. 2021 (rotary positions); Ainslie et al. 2023 (grouped heads).

    Example:
        >>> size = MixerSize(d_model=8, heads=4, key_heads=2, key_dim=2, value_dim=5)
        >>> y, cache = SoftmaxAttention(size, Rotary(2))(torch.randn(2, 6, 8))
        >>> y.shape, cache.state.keys.shape
        (torch.Size([2, 6, 8]), torch.Size([2, 6, 2, 2]))
    """

    def __init__(self, size: MixerSize, rotary: Rotary, window: int | None = None) -> None:
        super().__init__(size)
        self.rotary, self.window = rotary, None if window is None else whole("window", window)
        self.widths = (size.heads * size.key_dim, size.key_heads * size.key_dim, size.key_heads * size.value_dim)
        self.project = Projection(size.d_model, sum(self.widths))
        self.out = Projection(size.heads * size.value_dim, size.d_model, residual_gain(size.d_model, size.layers))

    def sequence(
        self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode
    ) -> tuple[Tensor, LayerCache]:
        """As `Mixer.sequence`; there is one way to compute softmax attention, whatever the mode."""
        self.check_shape(x, "B,T,d_model")
        check_mode(mode, None)
        q, k, v = self.split(self.project(x))
        rows = rows_of(x, cu_seqlens)
        held = None if cache is None else own(cache, rows).to(v.dtype)
        seen = torch.zeros(rows, dtype=torch.int64, device=x.device) if held is None else held.seen
        where = positions(seen, x.shape[1], cu_seqlens)
        q, k = self.rotary(torch.cat([q, k], 2), where).split((self.size.heads, self.size.key_heads), 2)
        out, state = softmax_attention(q, k, v, state=held, cu_seqlens=cu_seqlens, window=self.window)
        return self.out(out.flatten(-2)), LayerCache(state)

    def token(self, x: Tensor, cache: LayerCache, inplace: bool) -> tuple[Tensor, LayerCache]:
        """As `Mixer.token`; a cache that grows cannot be written over, so `inplace` gives a new one too."""
        self.check_shape(x, "B,d_model")
        y, cache = self.sequence(x.unsqueeze(1), cache, None, "auto")
        return y.squeeze(1), cache

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B,T,H,K], k [B,T,Hk,K] and v [B,T,Hk,V]."""
        q, k, v = qkv.split(self.widths, -1)
        K, V = self.size.key_dim, self.size.value_dim
        return q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (-1, V))

    def lower(self, build: Builder, x: Value, plus: Value) -> Value:
        size = self.size
        q, k, v = self.project.lower(build, x).split(*self.widths)
        q, k = self.rotary.lower(build, q, size.heads), self.rotary.lower(build, k, size.key_heads)
        out = build.buffer(size.heads * size.value_dim)
        pages = build.pages(size.key_heads, size.key_dim, size.value_dim, self.window)
        build.add(Attend(q, k, v, out, size.heads, size.key_dim**-0.5, pages))
        return self.out.lower(build, out, plus)

    def empty_cache(
        self, rows: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LayerCache:
        weight, heads, K, V = self.project.weight, self.size.key_heads, self.size.key_dim, self.size.value_dim
        dtype, device = dtype or weight.dtype, weight.device if device is None else device
        return LayerCache(KeyValues.empty(rows, heads, K, heads, V, dtype=dtype, device=device))

    def state_nbytes(self, tokens: int) -> int:
        """Bytes of one sequence's keys, values and count after `tokens` tokens; no more than a window's."""
        kept = tokens if self.window is None else min(tokens, self.window - 1)
        token = self.size.key_heads * (self.size.key_dim + self.size.value_dim) * self.project.weight.element_size()
        return kept * token + torch.int64.itemsize

    def reset_parameters(self) -> None:
        """Draws both projections again."""
        self.project.reset_parameters()
        self.rotary.reset_parameters()
        self.out.reset_parameters()


def own(cache: LayerCache, rows: int) -> KeyValues:
    """The keys and values of a cache that came from softmax attention and has as many rows as the call."""
    if not isinstance(cache.state, KeyValues):
        held = ", ".join(cache.tensors())
        raise ValueError(f"cache must hold keys and values, it holds {held}: is it of another layer?")
    cache.check_rows(rows)
    return cache.state
