"""The linear-attention layer: projections, a recurrence put together from parts, and its cache."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from rebracket.features.base import FeatureMap
from rebracket.nn.cache import LayerCache
from rebracket.nn.convolution import ShortConvolution
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.decays import Decay
from rebracket.nn.initialization import residual_std
from rebracket.nn.mixer import Mixer, MixerSize, rows_of
from rebracket.nn.norms import GatedNorm, HeadNorm
from rebracket.nn.positions import advance, positions
from rebracket.nn.projections import LowRankProjection, Projection
from rebracket.nn.rotary import Rotary
from rebracket.nn.skip import ValueSkip
from rebracket.nn.writes import AdditiveWrite, Write
from rebracket.ops.attention import linear_attention, step
from rebracket.ops.checks import Mode
from rebracket.ops.state import State


@final
class LinearAttention(Mixer):
    """A layer around `linear_attention`; every part is an argument of its own.

    q, k, v = split(conv(W x));   S_t = Diag(a_t) S_{t-1} + write(phi(k_t), v_t);   y = W_o norm(S_t^T phi(q_t), gate)

    Args:
        size: the sizes; the state of a head is feature.dim_out x value_dim numbers, with cosine twice as many.
        feature: phi, from key_dim.
        decay: from x to log a, or None for none; it may set the strength of the writes too.
        write: from x to the write rule; additive by default.
        normalize: divide by the running sum of keys (additive writes, positive features).
        scale: factor of what is read; the operator's own by default.
        convolution: width of a short causal convolution with SiLU over q, k and v, or None for none.
        rotary: turns q and k by their position before phi, or None.
        cosine: weights the features by their position, or None.
        skip: adds each token's own value to what is read, or None.
        norm: norm of the heads' outputs, which applies the gate, or None.
        gate: from x to the gate [...,H V], or None; needs a norm that has an activation for it.

    Raises:
        ValueError: If parts do not fit one another.

    Cost: that of the projections, d_model (2 Hq K + 2 H V) multiply-adds a token, and of the operator.

    Source: the common form of Katharopoulos et al. 2020, RetNet, GLA, DeltaNet, Gated DeltaNet and KDA.

    Example:
        >>> from rebracket import features
        >>> size = MixerSize(d_model=8, heads=2, key_heads=1, key_dim=3, value_dim=5)
        >>> layer = LinearAttention(size, feature=features.make("identity", 3))
        >>> y, cache = layer(torch.randn(2, 6, 8))
        >>> y.shape, cache.state.memory.shape
        (torch.Size([2, 6, 8]), torch.Size([2, 2, 3, 5]))
    """

    def __init__(
        self,
        size: MixerSize,
        *,
        feature: FeatureMap,
        decay: Decay | None = None,
        write: Write | None = None,
        normalize: bool = False,
        scale: float | None = None,
        convolution: int | None = None,
        rotary: Rotary | None = None,
        cosine: CosineWeights | None = None,
        skip: ValueSkip | None = None,
        norm: HeadNorm | GatedNorm | None = None,
        gate: Projection | LowRankProjection | None = None,
    ) -> None:
        super().__init__(size)
        refuse_unfit(size, feature, normalize, cosine, norm, gate)
        self.feature, self.decay, self.write = feature, decay, write or AdditiveWrite()
        self.normalize, self.scale, self.rotary, self.cosine = normalize, scale, rotary, cosine
        self.skip, self.norm, self.gate = skip, norm, gate
        self.widths = (size.key_heads * size.key_dim, size.key_heads * size.key_dim, size.heads * size.value_dim)
        self.project = Projection(size.d_model, sum(self.widths))
        self.convolution = None if convolution is None else ShortConvolution(sum(self.widths), convolution)
        self.out = Projection(size.heads * size.value_dim, size.d_model, residual_std(size.layers))

    def forward(
        self, x: Tensor, *, cache: LayerCache | None = None, cu_seqlens: Tensor | None = None, mode: Mode = "auto"
    ) -> tuple[Tensor, LayerCache]:
        self.refuse_misshapen(x, "B,T,d_model")
        held = None if cache is None else self.own(cache, rows_of(x, cu_seqlens))
        qkv, tail = self.convolve(self.project(x), cache, cu_seqlens)
        q, k, v = self.split(qkv)
        q, k, seen = self.map(q, k, cache, cu_seqlens)
        log_decay = None if self.decay is None else self.decay(x)
        out, state = linear_attention(
            q,
            k,
            self.strengthened(v, log_decay),
            log_decay=log_decay,
            write=self.write(x, k),
            normalize=self.normalize,
            scale=self.scale,
            state=held,
            cu_seqlens=cu_seqlens,
            mode=mode,
        )
        return self.read(out, v, x), LayerCache(state, tail, seen)

    def step(self, x: Tensor, cache: LayerCache, *, inplace: bool = False) -> tuple[Tensor, LayerCache]:
        self.refuse_misshapen(x, "B,d_model")
        held = self.own(cache, x.shape[0])
        qkv, tail = self.convolve_one(self.project(x), cache)
        q, k, v = self.split(qkv)
        q, k, seen = self.map_one(q, k, cache)
        log_decay = None if self.decay is None else self.decay(x)
        out, state = step(
            q,
            k,
            self.strengthened(v, log_decay),
            log_decay=log_decay,
            write=self.write(x, k),
            normalize=self.normalize,
            scale=self.scale,
            state=held,
            inplace=inplace,
        )
        after = LayerCache(state, tail, seen)
        return self.read(out, v, x), cache.overwrite(after) if inplace else after

    def convolve(
        self, qkv: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """A stretch through the convolution, if there is one, and the tail that it leaves."""
        if self.convolution is None:
            return qkv, None
        tail = None if cache is None or cache.tail is None else cache.tail.to(qkv.dtype)
        return self.convolution(qkv, tail, cu_seqlens)

    def convolve_one(self, qkv: Tensor, cache: LayerCache) -> tuple[Tensor, Tensor | None]:
        """The same for one token."""
        if self.convolution is None or cache.tail is None:
            return qkv, None
        return self.convolution.step(qkv, cache.tail.to(qkv.dtype))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [...,Hq,K] and v [...,H,V]."""
        q, k, v = qkv.split(self.widths, -1)
        keys = (self.size.key_heads, self.size.key_dim)
        return q.unflatten(-1, keys), k.unflatten(-1, keys), v.unflatten(-1, (self.size.heads, self.size.value_dim))

    def map(
        self, q: Tensor, k: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The features of q and k at their positions, and the tokens seen after them."""
        if not self.counts:
            return self.feature.queries(q), self.feature(k), None
        seen = None if cache is None else cache.seen
        if seen is None:
            seen = torch.zeros(rows_of(q, cu_seqlens), dtype=torch.int64, device=q.device)
        where = positions(seen, q.shape[1], cu_seqlens)
        q, k = placed(self.rotary, q, k, where)
        q, k = placed(self.cosine, self.feature.queries(q), self.feature(k), where)
        return q, k, advance(seen, q.shape[1], cu_seqlens)

    def map_one(self, q: Tensor, k: Tensor, cache: LayerCache) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same for one token."""
        q, k, seen = self.map(q.unsqueeze(1), k.unsqueeze(1), cache, None)
        return q.squeeze(1), k.squeeze(1), seen

    def strengthened(self, v: Tensor, log_decay: Tensor | None) -> Tensor:
        """The values as they are written, where the decay has a say in it."""
        if self.decay is None or log_decay is None:
            return v
        strength = self.decay.strength(log_decay)
        return v if strength is None else (v * strength.unsqueeze(-1)).to(v.dtype)

    def read(self, out: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """The heads' outputs [...,H,V], normed and gated, on their way to the residual stream."""
        out = out if self.skip is None else self.skip(out, v)
        if self.norm is None:
            return self.out(out.flatten(-2))
        gate = None if self.gate is None else self.gate(x).unflatten(-1, out.shape[-2:]).to(out.dtype)
        return self.out(self.norm(out, gate).flatten(-2))

    @property
    def counts(self) -> bool:
        """Whether the layer needs to know how many tokens it has seen."""
        return self.rotary is not None or self.cosine is not None

    def own(self, cache: LayerCache, rows: int) -> State:
        """The state of a cache that came from a layer like this one and has as many rows as the call."""
        parts = {"tail": self.convolution is not None, "seen": self.counts}
        wrong = [name for name, needed in parts.items() if (getattr(cache, name) is not None) != needed]
        if wrong or not isinstance(cache.state, State):
            held = ", ".join(cache.tensors())
            raise ValueError(f"cache must come from a layer like this one, it holds {held}: is it of another layer?")
        cache.refuse_rows(rows)
        return cache.state

    def empty_cache(
        self, rows: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LayerCache:
        weight = self.project.weight
        dtype, device = dtype or weight.dtype, weight.device if device is None else device
        state = State.zeros(
            rows,
            self.size.heads,
            self.feature.dim_out if self.cosine is None else self.cosine.dim_out,
            self.size.value_dim,
            key_sum=self.normalize,
            dtype=torch.promote_types(dtype, torch.float32),
            device=device,
        )
        seen = torch.zeros(rows, dtype=torch.int64, device=device) if self.counts else None
        return LayerCache(state, self.empty_tail(rows, dtype, device), seen)

    def empty_tail(self, rows: int, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
        """What a convolution has before the first token, if there is one."""
        if self.convolution is None:
            return None
        return torch.zeros(rows, self.convolution.width - 1, sum(self.widths), dtype=dtype, device=device)

    def state_nbytes(self, tokens: int) -> int:
        """Bytes of one sequence's cache, the same after any number of tokens."""
        return self.empty_cache(1, device="meta").nbytes

    def reset_parameters(self) -> None:
        """Draws every weight of every part again, always in the same order."""
        always = (self.project, self.out, self.feature, self.write)
        for part in (*always, self.convolution, self.decay, self.skip, self.norm, self.gate):
            if part is not None:
                part.reset_parameters()


def placed(part: Rotary | CosineWeights | None, q: Tensor, k: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """q and k through a part that needs their positions, if there is one."""
    if part is None:
        return q, k
    q, k = part(torch.cat([q, k], 2), where).chunk(2, 2)
    return q, k


def refuse_unfit(
    size: MixerSize,
    feature: FeatureMap,
    normalize: bool,
    cosine: CosineWeights | None,
    norm: HeadNorm | GatedNorm | None,
    gate: Projection | LowRankProjection | None,
) -> None:
    if feature.dim_in != size.key_dim:
        raise ValueError(f"feature must take key_dim = {size.key_dim}, it takes {feature.dim_in}")
    if cosine is not None and cosine.dim != feature.dim_out:
        raise ValueError(f"cosine must take the {feature.dim_out} features of a head, it takes {cosine.dim}")
    if normalize and not feature.positive:
        raise ValueError(f"normalize needs a positive feature map, {type(feature).__name__} is not: the sum may be 0")
    if gate is not None and norm is None:
        raise ValueError("gate needs a norm with an activation to be applied by; give norm")


def widened(size: MixerSize, feature: FeatureMap) -> MixerSize:
    """The size as the recurrence sees it: keys as wide as their features."""
    return replace(size, key_dim=feature.dim_out)
