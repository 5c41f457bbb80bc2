"""Softmax attention, the baseline and the partner in hybrids, with a cache that can be held like a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.base.checks import truth, whole
from rebracket.base.tensors import SavedTensors
from rebracket.ops.checks import check_devices, check_packing, check_rank
from rebracket.ops.heads import repeat_heads
from rebracket.ops.precision import without_autocast
from rebracket.ops.write import Sizes

# Queries that share one mask: the mask is BLOCK x keys, whatever T is.
BLOCK = 512
SMALLEST_BLOCK = 64


@final
@dataclass(frozen=True, eq=False)
class KeyValues(SavedTensors):
    """The keys and values that softmax attention has seen, for N sequences of unlike lengths.

    Row n holds its last min(seen[n], L) tokens at the end; what stands before them is zero and is never read.

    Args:
        keys: [N,L,Hk,K].
        values: [N,L,Hv,V], of the same dtype.
        seen: tokens that each row has seen, [N] int64; more than L where a window has dropped some.

    Raises:
        ValueError: If the shapes do not fit together or seen is not int64.

    Cost: L (Hk K + Hv V) numbers a sequence, a token more for each token until a window is full.

    Source: Vaswani et al. 2017, whose keys and values are kept instead of made again.

    Example:
        >>> cache = KeyValues.empty(2, 3, 4, 3, 5)
        >>> cache.nbytes
        16
        >>> cache.select([1]).keys.shape
        torch.Size([1, 0, 3, 4])
    """

    kind: ClassVar[str] = "rebracket.key_values"
    version: ClassVar[int] = 1

    keys: Tensor
    values: Tensor
    seen: Tensor

    def __post_init__(self) -> None:
        keys, values, seen = (list(x.shape) for x in (self.keys, self.values, self.seen))
        if len(keys) != 4 or len(values) != 4 or keys[:2] != values[:2]:
            raise ValueError(f"keys and values must be [N,L,Hk,K] and [N,L,Hv,V], got {keys} and {values}")
        if seen != keys[:1] or self.seen.dtype != torch.int64:
            raise ValueError(f"seen must be [N] = {keys[:1]} of int64, got {seen} of {self.seen.dtype}")

    @classmethod
    def empty(
        cls,
        N: int,
        Hk: int,
        K: int,
        Hv: int,
        V: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        """The cache of N sequences that have not begun; dtype is that of the keys to come."""
        keys = torch.zeros(N, 0, Hk, K, dtype=dtype, device=device)
        values = torch.zeros(N, 0, Hv, V, dtype=dtype, device=device)
        return cls(keys, values, torch.zeros(N, dtype=torch.int64, device=device))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The cache of these tensors by name."""
        if tensors.keys() != {"keys", "values", "seen"}:
            raise ValueError(f"expected keys, values and seen, found {sorted(tensors)}")
        return cls(tensors["keys"], tensors["values"], tensors["seen"])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.keys.device


class SoftmaxOutput(NamedTuple):
    """What `softmax_attention` returns: out [B,T,H,V], and the cache after the last token.

    Example:
        >>> out, cache = softmax_attention(*torch.randn(3, 1, 6, 2, 4))
    """

    out: Tensor
    state: KeyValues


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    state: KeyValues | None = None,
    cu_seqlens: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
) -> SoftmaxOutput:
    """Softmax attention over a sequence, in the shapes of `linear_attention`.

        o_t = sum_j w_tj v_j / sum_j w_tj,   w_tj = exp(scale q_t . k_j),   t - window < j <= t

    Args:
        q: queries [B,T,Hq,K]; float32, bfloat16, float16 or float64.
        k: keys [B,T,Hk,K].
        v: values [B,T,Hv,V]. There are H = max(Hq, Hk, Hv) heads; each count divides H, and head h uses head
            h // (H // count) of a tensor with fewer.
        scale: factor of the exponent, K**-0.5 by default.
        state: the cache to continue from, of the dtype of k, made with the same window; nothing by default.
        cu_seqlens: offsets [N+1] of N sequences packed in one row (B = 1), from 0; tokens beyond the last are a tail
            whose outputs are 0.
        causal: False lets every token see its whole sequence (no `state`, no `window`).
        window: tokens that each token sees, itself included, >= 1; all by default.

    Returns:
        SoftmaxOutput(out [B,T,H,V] in the dtype of v, state of B or N rows). With a window the state keeps the last
        window - 1 tokens; packed, its L is that of the longest sequence.

    Raises:
        ValueError: If a shape, value or combination does not fit, by the name of its argument.
        TypeError: If an argument is of the wrong kind.

    Cost: T L (K + V) operations per head for L tokens seen, T window (K + V) with a window; at most 512 L booleans of
    mask at a time, and none for a sequence from its start without a window. Once differentiable.

    Source: Vaswani et al. 2017, through torch's scaled_dot_product_attention; windows as in Beltagy et al. 2020.

    Example:
        >>> q, k, v = torch.randn(2, 9, 4, 6), torch.randn(2, 9, 2, 6), torch.randn(2, 9, 2, 5)
        >>> whole, _ = softmax_attention(q, k, v)
        >>> first, cache = softmax_attention(q[:, :7], k[:, :7], v[:, :7])
        >>> rest, cache = softmax_attention(q[:, 7:], k[:, 7:], v[:, 7:], state=cache)
        >>> bool(torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-5))
        True
    """
    sizes = measure(q, k, v)
    truth("causal", causal)
    check_reach(causal, window, state)
    held = state.tensors() if isinstance(state, KeyValues) else {}
    check_devices(q, {"k": k, "v": v, "cu_seqlens": cu_seqlens, **{f"state.{name}": x for name, x in held.items()}})
    check_packing(cu_seqlens, sizes.B, sizes.T)
    check_cache(state, k, v, sizes.B if cu_seqlens is None else cu_seqlens.shape[0] - 1)
    reach = Reach(sizes.K**-0.5 if scale is None else float(scale), causal, window)
    with without_autocast(q):
        if cu_seqlens is None:
            return padded(q, k, v, state, reach)
        return packed(q, k, v, state, cu_seqlens.tolist(), reach)


@final
@dataclass(frozen=True)
class Reach:
    """How far and how sharply queries look: the exponent's scale, only backwards or not, over how many tokens."""

    scale: float
    causal: bool
    window: int | None

    def sees_all(self, tokens: int) -> bool:
        """Whether the window, if any, is no limit for so many tokens."""
        return self.window is None or self.window >= tokens

    def kept(self, tokens: int) -> int:
        """How many of so many tokens later ones can still see."""
        return tokens if self.window is None else min(tokens, self.window - 1)

    @property
    def block(self) -> int:
        """Queries that are worth one call: with a window, about as many as the keys that all of them share."""
        return BLOCK if self.window is None else min(BLOCK, max(SMALLEST_BLOCK, self.window))

    def begins(self, q: Tensor, keys: Tensor) -> range:
        """The place of each block's first query among the keys, at whose end the queries stand."""
        return range(keys.shape[1] - q.shape[1], keys.shape[1], self.block)


def measure(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """The letters of the call, with H the number of output heads; the three tensors must agree."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_rank(name, x)
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3]):
        raise ValueError(
            f"q, k and v must be [B,T,Hq,K], [B,T,Hk,K] and [B,T,Hv,V], time before heads, "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype}, {v.dtype}; convert them to one")
    counts = [x.shape[2] for x in (q, k, v)]
    H = max(counts)
    if min(*counts, q.shape[3], v.shape[3]) == 0 or any(H % count for count in counts):
        raise ValueError(f"heads of q, k and v must divide the most of them, got {counts}; shapes are [B,T,heads,dim]")
    return Sizes(q.shape[0], q.shape[1], q.shape[2], H, q.shape[3], v.shape[3])


def check_reach(causal: bool, window: int | None, state: KeyValues | None) -> None:
    if window is not None:
        whole("window", window)
    if not causal and (window is not None or state is not None):
        raise ValueError("causal=False sees the whole sequence in one call; leave out window and state")


def check_cache(state: KeyValues | None, k: Tensor, v: Tensor, N: int) -> None:
    if state is None:
        return
    if not isinstance(state, KeyValues):
        raise TypeError(f"state must be a KeyValues, got {type(state).__name__}; KeyValues.empty(...) begins one")
    for name, cached, new in (("keys", state.keys, k), ("values", state.values, v)):
        if cached.shape[0] != N or cached.shape[2:] != new.shape[2:]:
            expected = [N, "L", *new.shape[2:]]
            raise ValueError(f"state.{name} must be [N,L,heads,dim] = {expected}, got {list(cached.shape)}")
        if cached.dtype != new.dtype:
            raise TypeError(f"state.{name} must be {new.dtype} like {name[0]}, got {cached.dtype}; use state.to(dtype)")


def padded(q: Tensor, k: Tensor, v: Tensor, state: KeyValues | None, reach: Reach) -> SoftmaxOutput:
    """A batch whose rows all get T tokens, each after a past of its own length."""
    B, T = q.shape[:2]
    if state is None:
        keys, values, blank = k, v, None
        seen = torch.full((B,), T, dtype=torch.int64, device=q.device)
    else:
        keys, values = torch.cat([state.keys, k], 1), torch.cat([state.values, v], 1)
        blank = (state.keys.shape[1] - state.seen).clamp(min=0)
        seen = state.seen + T
    out = attend(q, keys, values, blank, reach)
    start = keys.shape[1] - reach.kept(keys.shape[1])
    if start > 0 or state is None:
        # A copy, so that the state neither changes with the caller's k nor keeps alive what the window dropped.
        keys, values = keys[:, start:].clone(), values[:, start:].clone()
    return SoftmaxOutput(out, KeyValues(keys, values, seen))


def packed(q: Tensor, k: Tensor, v: Tensor, state: KeyValues | None, bounds: list[int], reach: Reach) -> SoftmaxOutput:
    """Sequences one behind the other in one row, each attended by itself."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    rest = q.shape[1] - bounds[-1]
    past = [(k[:, :0], v[:, :0])] * len(lengths) if state is None else unpadded(state)
    # One split, not a slice for each: the gradient of a slice costs as much as the whole row.
    parts = zip(*(x.split([*lengths, rest], 1)[:-1] for x in (q, k, v)), strict=True)
    outs, keys, values = [], [], []
    for (old_keys, old_values), (query, key, value) in zip(past, parts, strict=True):
        row_keys, row_values = torch.cat([old_keys, key], 1), torch.cat([old_values, value], 1)
        outs.append(attend(query, row_keys, row_values, None, reach))
        start = row_keys.shape[1] - reach.kept(row_keys.shape[1])
        keys.append(row_keys[0, start:])
        values.append(row_values[0, start:])
    tail = v.new_zeros(1, rest, heads_of(q, k, v), v.shape[3])
    seen = torch.tensor(lengths, dtype=torch.int64, device=q.device)
    state = KeyValues(right_aligned(keys, k), right_aligned(values, v), seen if state is None else state.seen + seen)
    return SoftmaxOutput(torch.cat([*outs, tail], 1), state)


def unpadded(state: KeyValues) -> list[tuple[Tensor, Tensor]]:
    """The keys and values [1,tokens,heads,dim] that each row really holds."""
    L = state.keys.shape[1]
    starts = [max(L - seen, 0) for seen in state.seen.tolist()]
    return [(state.keys[n : n + 1, start:], state.values[n : n + 1, start:]) for n, start in enumerate(starts)]


def right_aligned(rows: list[Tensor], like: Tensor) -> Tensor:
    """Rows [tokens,heads,dim] of unlike lengths as one [N,L,heads,dim], zeros on the left."""
    if not rows:
        return like[:0, :0]
    L = max(row.shape[0] for row in rows)
    return torch.stack([F.pad(row, (0, 0, 0, 0, L - row.shape[0], 0)) for row in rows])


def attend(q: Tensor, keys: Tensor, values: Tensor, blank: Tensor | None, reach: Reach) -> Tensor:
    """Queries that stand at the end of the keys; the first blank[n] keys of row n are padding."""
    T, past = q.shape[1], keys.shape[1] - q.shape[1]
    if T == 0:
        return values.new_zeros(q.shape[0], 0, heads_of(q, keys, values), values.shape[3])
    if past == 0 and reach.sees_all(T):
        return dot_product(q, keys, values, None, reach.causal, reach.scale)
    if reach.window is None or reach.window > BLOCK or reach.block >= T:
        return in_slices(q, keys, values, blank, reach)
    return in_bands(q, keys, values, blank, reach, reach.window)


def in_slices(q: Tensor, keys: Tensor, values: Tensor, blank: Tensor | None, reach: Reach) -> Tensor:
    """Blocks of queries, each on a view of the keys that it sees."""
    outs = []
    for begin, block in zip(reach.begins(q, keys), q.split(reach.block, 1), strict=True):
        end = begin + block.shape[1]
        first = 0 if reach.window is None else max(0, begin - reach.window + 1)
        places = torch.arange(first, end, device=q.device)
        mask = visible(torch.arange(begin, end, device=q.device), places, blank, reach.window)
        outs.append(dot_product(block, keys[:, first:end], values[:, first:end], mask, False, reach.scale))
    return torch.cat(outs, 1)


def in_bands(q: Tensor, keys: Tensor, values: Tensor, blank: Tensor | None, reach: Reach, window: int) -> Tensor:
    """Blocks of queries, each on a copy of the keys that it sees.

    The gradient of many slices of one tensor costs a whole tensor for each; that of one gather costs the gather. With
    blocks as long as the window the copies hold every key about twice.
    """
    last, begins = keys.shape[1] - 1, reach.begins(q, keys)
    places = torch.stack([torch.arange(begin + 1 - window, begin + reach.block, device=q.device) for begin in begins])
    rows = places.clamp(0, last).flatten()  # places outside the sequence are masked
    shared = [x.index_select(1, rows).unflatten(1, places.shape).unbind(1) for x in (keys, values)]
    outs = []
    for begin, block, place, key, value in zip(begins, q.split(reach.block, 1), places, *shared, strict=True):
        query = torch.arange(begin, begin + block.shape[1], device=q.device)
        outs.append(dot_product(block, key, value, visible(query, place, blank, window), False, reach.scale))
    return torch.cat(outs, 1)


def visible(query: Tensor, key: Tensor, blank: Tensor | None, window: int | None) -> Tensor:
    """Which keys each query sees, [1 or N,1,queries,keys], by their places in the sequence."""
    mask = (key <= query[:, None]) & (key >= 0)
    if window is not None:
        mask = mask & (key > query[:, None] - window)
    return mask[None, None] if blank is None else mask & (key >= blank[:, None])[:, None, None]


def dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """torch's kernel on [B,T,heads,dim]; out has V as its last dimension and as many heads as the most."""
    V, T, H = v.shape[3], q.shape[1], heads_of(q, k, v)
    # The fused kernels share heads of k and v among heads of q, but many of them not under a mask.
    shares = q.shape[2] == H and k.shape[2] == v.shape[2] and (mask is None or T == 1)
    if not shares:
        q, k, v = (repeat_heads(x, H) for x in (q, k, v))
    if T > 1 and q.shape[3] != V:
        # They also want K = V, or the T x T scores are written out; zeros change neither scores nor values.
        q, k, v = (F.pad(x, (0, max(q.shape[3], V) - x.shape[3])) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shares)
    return out.transpose(1, 2)[..., :V]


def heads_of(q: Tensor, k: Tensor, v: Tensor) -> int:
    """H, the number of output heads."""
    return max(q.shape[2], k.shape[2], v.shape[2])
