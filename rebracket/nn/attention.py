"""The linear-attention layer: projections, a recurrence put together from parts, and its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.base.checks import whole
from rebracket.features.base import FeatureMap
from rebracket.nn.cache import LayerCache
from rebracket.nn.convolution import ShortConvolution
from rebracket.nn.correction import QueryCorrection
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.decays.base import Decay
from rebracket.nn.mixer import Mixer, MixerSize, rows_of
from rebracket.nn.norms import OutputNorm
from rebracket.nn.positions import advance, positions
from rebracket.nn.projections import LowRankProjection, Projection, residual_gain
from rebracket.nn.rotary import Rotary
from rebracket.nn.skip import ValueSkip
from rebracket.nn.writes.additive import AdditiveWrite
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.attention import linear_attention
from rebracket.ops.checks import Mode
from rebracket.ops.program import Builder, Recur, Value
from rebracket.ops.state import State
from rebracket.ops.stepper import Stepper


@final
@dataclass(frozen=True, eq=False)
class Operands:
    """Arguments of the operator for a sequence or for one token, and what the layer needs after it.

    v holds the values before the write changed them; tail and seen are those of the next cache.
    """

    q: Tensor
    written: Written
    log_decay: Tensor | None
    v: Tensor
    tail: Tensor | None
    seen: Tensor | None


@final
class LinearAttention(Mixer):
    """A layer around `linear_attention`; every part is an argument of its own.

    q, k, v = split(conv(W x));   S_t = Diag(a_t) S_{t-1} + write(phi(k_t), v_t);   y = W_o norm(S_t^T phi(q_t), gate)

    Args:
        size: the sizes; the state of a head is feature.dim_out x value_dim numbers, with cosine twice as many.
        feature: phi, from key_dim.
        decay: from x to log a, or None for none.
        write: from x, keys, values and log a to what is written; additive by default.
        normalize: divide by the running sum of keys (additive writes, positive features).
        scale: factor of what is read, the operator's own by default; without effect with `normalize`.
        convolution: width of a short causal convolution over q, k and v in tokens, or None for none.
        silu: whether q, k and v go through SiLU before phi; by default exactly if there is a convolution.
        rotary: turns q and k by their position before phi, or None.
        cosine: weights the features by their position, or None.
        correction: takes a part of the key off the query, or None.
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
        silu: bool | None = None,
        rotary: Rotary | None = None,
        cosine: CosineWeights | None = None,
        correction: QueryCorrection | None = None,
        skip: ValueSkip | None = None,
        norm: OutputNorm | None = None,
        gate: Projection | LowRankProjection | None = None,
    ) -> None:
        super().__init__(size)
        self.feature, self.decay, self.write = feature, decay, write or AdditiveWrite()
        self.normalize, self.scale, self.rotary, self.cosine = normalize, scale, rotary, cosine
        self.correction, self.skip, self.norm, self.gate = correction, skip, norm, gate
        self.check_parts()
        q, v = size.key_heads * size.key_dim, size.heads * size.value_dim
        self.widths = (q, self.write.key_entries * q, self.write.entries * v)
        self.project = Projection(size.d_model, sum(self.widths))
        self.silu = convolution is not None if silu is None else silu
        self.convolution = None
        if convolution is not None:
            width = whole("convolution", convolution)
            self.convolution = ShortConvolution(sum(self.widths), width, "silu" if self.silu else None)
        self.out = Projection(v, size.d_model, residual_gain(size.d_model, size.layers))
        self.stepper = Stepper(normalize=normalize, scale=scale)

    def sequence(
        self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode
    ) -> tuple[Tensor, LayerCache]:
        self.check_shape(x, "B,T,d_model")
        held = None if cache is None else self.state_of(cache, rows_of(x, cu_seqlens))
        given = self.operands(x, cache, cu_seqlens)
        out, state = linear_attention(
            given.q,
            given.written.k,
            given.written.v,
            log_decay=given.log_decay,
            write=given.written.rule,
            bonus=given.written.bonus,
            normalize=self.normalize,
            scale=self.scale,
            state=held,
            cu_seqlens=cu_seqlens,
            mode=mode,
        )
        return self.read(out, given.v, x), LayerCache(state, given.tail, given.seen)

    def token(self, x: Tensor, cache: LayerCache, inplace: bool) -> tuple[Tensor, LayerCache]:
        self.check_shape(x, "B,d_model")
        held = self.state_of(cache, x.shape[0])
        given = self.operands(x, cache, None)
        out, state = self.stepper(
            given.q,
            given.written.k,
            given.written.v,
            log_decay=given.log_decay,
            write=given.written.rule,
            bonus=given.written.bonus,
            state=held,
            inplace=inplace,
        )
        after = LayerCache(state, given.tail, given.seen)
        return self.read(out, given.v, x), cache.overwrite(after) if inplace else after

    def operands(self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None) -> Operands:
        """The arguments for a sequence x [B,T,d_model], or for one token of each row x [B,d_model]."""
        qkv, tail = self.convolved(self.project(x), cache, cu_seqlens)
        q, k, v = self.split(qkv)
        q, k, seen = self.features_of(q, k, cache, cu_seqlens)
        log_decay = None if self.decay is None else self.decay(x)
        written = self.write(x, by_entry(k, self.size.key_heads), by_entry(v, self.size.heads), log_decay)
        if written.k.shape[-2] > q.shape[-2]:  # the write made a key for each head of v
            q = q.repeat_interleave(written.k.shape[-2] // q.shape[-2], -2)
        return Operands(q, written, log_decay, v, tail, seen)

    def convolved(
        self, qkv: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """q, k and v after the convolution and SiLU, if there are any, and the tail for the next call."""
        if self.convolution is None:
            return F.silu(qkv) if self.silu else qkv, None
        tail = None if cache is None or cache.tail is None else cache.tail.to(qkv.dtype)
        if tail is not None and qkv.ndim == 2:
            return self.convolution.step(qkv, tail)
        return self.convolution(qkv, tail, cu_seqlens)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [...,Hq,K], k [...,n Hq,K] and v [...,n H,V], n the entries of a token."""
        size, (q, k, v) = self.size, qkv.split(self.widths, -1)
        k = k.unflatten(-1, (self.write.key_entries * size.key_heads, size.key_dim))
        v = v.unflatten(-1, (self.write.entries * size.heads, size.value_dim))
        return q.unflatten(-1, (size.key_heads, size.key_dim)), k, v

    def features_of(
        self, q: Tensor, k: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The features of q and k at their positions, q corrected, and the tokens seen after them."""
        seen, where = None, None
        if self.counts_tokens:
            before = None if cache is None else cache.seen
            if before is None:
                before = torch.zeros(rows_of(q, cu_seqlens), dtype=torch.int64, device=q.device)
            tokens = q.shape[1] if q.ndim == 4 else 1
            where, seen = positions(before, tokens, cu_seqlens), advance(before, tokens, cu_seqlens)
        q, k = at_positions(self.rotary, q, k, where)
        q, k = at_positions(self.cosine, self.feature.queries(q), self.feature(k), where)
        return q if self.correction is None else self.correction(q, k), k, seen

    def read(self, out: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """The heads' outputs [...,H,V], normed, gated and projected to the residual stream."""
        out = out if self.skip is None else self.skip(out, v)
        if self.norm is None:
            return self.out(out.flatten(-2))
        gate = None if self.gate is None else self.gate(x).unflatten(-1, out.shape[-2:]).to(out.dtype)
        return self.out(self.norm(out, gate).flatten(-2))

    def lower(self, build: Builder, x: Value, plus: Value) -> Value:
        size, (q, k, v) = self.size, self.lower_projections(build, x)
        q, k = self.lower_features(build, q, k)
        log_decay = None if self.decay is None else self.decay.lower(build, x)
        written = self.write.lower(build, x, LoweredWrite(k, v, size.key_heads, size.heads), log_decay)
        out, K = build.buffer(size.heads * size.value_dim), q.width // size.key_heads
        build.add(
            Recur(
                q,
                written.k,
                written.v,
                written.r,
                written.beta,
                log_decay,
                written.bonus,
                out,
                query_heads=size.key_heads,
                key_heads=written.key_heads,
                heads=size.heads,
                per_token=self.write.entries,
                scale=1.0 if self.normalize else K**-0.5 if self.scale is None else self.scale,
                memory=build.hold("state.memory", size.heads, K, size.value_dim),
                key_sum=build.hold("state.key_sum", size.heads, K) if self.normalize else None,
            )
        )
        return self.lower_read(build, out, v, x, plus)

    def lower_projections(self, build: Builder, x: Value) -> tuple[Value, ...]:
        """The operations of q [Hq K], k [n Hq K] and v [n H V] before their features."""
        qkv = self.project.lower(build, x)
        if self.convolution is not None:
            qkv = self.convolution.lower(build, qkv)
        elif self.silu:
            qkv = build.apply("silu", qkv)
        return qkv.split(*self.widths)

    def lower_features(self, build: Builder, q: Value, k: Value) -> tuple[Value, Value]:
        """Those of `features_of`; k may hold no keys, or several for each head."""
        heads, entries = self.size.key_heads, self.write.key_entries * self.size.key_heads
        if self.rotary is not None:
            q, k = self.rotary.lower(build, q, heads), self.rotary.lower(build, k, entries) if entries else k
        q, k = self.feature.lower_queries(build, q, heads), self.feature.lower(build, k, entries) if entries else k
        if self.cosine is not None:
            q, k = self.cosine.lower(build, q, heads), self.cosine.lower(build, k, entries) if entries else k
        return q if self.correction is None else self.correction.lower(build, q, k), k

    def lower_read(self, build: Builder, out: Value, v: Value, x: Value, plus: Value) -> Value:
        """Those of `read`, and of a sum with `plus`."""
        if self.skip is not None:
            out = self.skip.lower(build, out, v)
        if self.norm is not None:
            gate = None if self.gate is None else self.gate.lower(build, x)
            out = self.norm.lower(build, out, gate, self.size.heads)
        return self.out.lower(build, out, plus)

    @property
    def counts_tokens(self) -> bool:
        """Whether a part needs to know the position of a token."""
        return self.rotary is not None or self.cosine is not None

    def state_of(self, cache: LayerCache, rows: int) -> State:
        """The state of a cache that came from a layer like this one and has as many rows as the call."""
        parts = {"tail": self.convolution is not None, "seen": self.counts_tokens}
        wrong = [name for name, needed in parts.items() if (getattr(cache, name) is not None) != needed]
        if wrong or not isinstance(cache.state, State):
            held = ", ".join(cache.tensors())
            raise ValueError(f"cache must come from a layer like this one, it holds {held}: is it of another layer?")
        cache.check_rows(rows)
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
        tail = None
        if self.convolution is not None:
            tail = torch.zeros(rows, self.convolution.width - 1, sum(self.widths), dtype=dtype, device=device)
        seen = torch.zeros(rows, dtype=torch.int64, device=device) if self.counts_tokens else None
        return LayerCache(state, tail, seen)

    def state_nbytes(self, tokens: int) -> int:
        """Bytes of one sequence's cache, the same after any number of tokens."""
        return self.empty_cache(1, device="meta").nbytes

    def reset_parameters(self) -> None:
        """Draws every weight of every part again, always in the same order."""
        always = (self.project, self.out, self.feature, self.write)
        for part in (*always, self.convolution, self.decay, self.correction, self.skip, self.norm, self.gate):
            if part is not None:
                part.reset_parameters()

    def check_parts(self) -> None:
        """Raises where parts do not fit one another."""
        feature, cosine = self.feature, self.cosine
        if feature.dim_in != self.size.key_dim:
            raise ValueError(f"feature must take key_dim = {self.size.key_dim}, it takes {feature.dim_in}")
        if cosine is not None and cosine.dim != feature.dim_out:
            raise ValueError(f"cosine must take the {feature.dim_out} features of a head, it takes {cosine.dim}")
        if self.normalize and not feature.positive:
            name = type(feature).__name__
            raise ValueError(f"normalize needs a positive feature map, {name} is not: the sum may be 0")
        if self.gate is not None and self.norm is None:
            raise ValueError("gate needs a norm with an activation to be applied by; give norm")
        if self.skip is not None and self.write.entries > 1:
            raise ValueError(f"skip needs one value a token, {type(self.write).__name__} has {self.write.entries}")
        if self.correction is not None and self.write.key_entries != 1:
            raise ValueError(f"correction needs one key a token, {type(self.write).__name__} has another number")


def at_positions(
    part: Rotary | CosineWeights | None, q: Tensor, k: Tensor, where: Tensor | None
) -> tuple[Tensor, Tensor]:
    """q and k through a part that depends on their positions, if there is one."""
    if part is None or where is None:
        return q, k
    both = torch.cat([q, k], -2)
    both = part(both, where) if both.ndim == 4 else part(both.unsqueeze(1), where).squeeze(1)
    q, k = both.split([q.shape[-2], k.shape[-2]], -2)
    return q, k


def by_entry(x: Tensor, heads: int) -> Tensor:
    """Several entries of a token, [B,T,n heads,D], one after another: [B,T n,heads,D]; of one token [B,n,heads,D]."""
    return x if x.shape[-2] in (0, heads) else x.unflatten(-2, (-1, heads)).flatten(1, -3)
