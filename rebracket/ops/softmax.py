"""Softmax attention, the baseline and the other layer of hybrids, with a cache that can be held like a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from rebracket.base.checks import truth, whole
from rebracket.base.tensors import SavedTensors
from rebracket.ops.backend import choose
from rebracket.ops.call import Softmax
from rebracket.ops.checks import check_devices, check_packing, check_rank
from rebracket.ops.tensors import check_tensor
from rebracket.ops.write import Sizes


@final
@dataclass(frozen=True, eq=False)
class KeyValues(SavedTensors):
    """The keys and values that softmax attention has seen, for N sequences of any lengths.

    Row n holds its last min(seen[n], L) tokens at the end; what stands before them is zero and is never read.

    Args:
        keys: [N,L,Hk,K].
        values: [N,L,Hv,V], of the same dtype.
        seen: tokens that each row has seen, [N] int64; more than L where a window has dropped some.

    Raises:
        ValueError: If the shapes do not fit together or seen is not int64.

    Cost: L (Hk K + Hv V) numbers a sequence, a token more for each token until a window is full.

    Source: Vaswani et al. 2017, whose keys and values are kept instead of computed again.

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
        """The cache of N sequences without tokens; dtype is that of the keys to come."""
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
        cu_seqlens: offsets [N+1] of N sequences packed in one row (B = 1), from 0; tokens beyond the last are
            padding, whose outputs are 0.
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
    call = Softmax(
        q,
        k,
        v,
        keys=None if state is None else state.keys,
        values=None if state is None else state.values,
        seen=None if state is None else state.seen,
        cu_seqlens=cu_seqlens,
        scale=sizes.K**-0.5 if scale is None else float(scale),
        causal=causal,
        window=window,
    )
    return choose(call, "auto").run(call)


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
    for name, x in state.tensors().items():
        check_tensor(f"state.{name}", x)
    for name, cached, new in (("keys", state.keys, k), ("values", state.values, v)):
        if cached.shape[0] != N or cached.shape[2:] != new.shape[2:]:
            expected = [N, "L", *new.shape[2:]]
            raise ValueError(f"state.{name} must be [N,L,heads,dim] = {expected}, got {list(cached.shape)}")
        if cached.dtype != new.dtype:
            raise TypeError(f"state.{name} must be {new.dtype} like {name[0]}, got {cached.dtype}; use state.to(dtype)")
