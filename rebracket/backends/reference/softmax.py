"""Softmax attention through torch's own kernel, for blocks of queries wherever a mask is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.ops.backend import Implementation
from rebracket.ops.call import Softmax
from rebracket.ops.heads import repeat_heads
from rebracket.ops.native import FOREIGN, check_readable, refuse_foreign
from rebracket.ops.precision import without_autocast
from rebracket.ops.softmax import KeyValues, SoftmaxOutput

# Queries that share one mask: the mask is BLOCK x keys, whatever T is.
BLOCK = 512
SMALLEST_BLOCK = 64
Seen = tuple[Tensor, Tensor, Tensor]
"""What a block of queries sees: the places of keys in the sequence, the keys, the values."""


@final
class TorchSoftmax(Implementation[Softmax]):
    """Blocks of queries, each by one call of torch's kernel."""

    call: ClassVar[type[Softmax]] = Softmax

    def covers(self, call: Softmax) -> str | None:
        return None

    def run(self, call: Softmax) -> SoftmaxOutput:
        named = call.tensors()
        check_readable(named)
        try:
            with without_autocast(call.q):
                return padded(call) if call.cu_seqlens is None else packed(call, call.cu_seqlens.tolist())
        except FOREIGN as error:
            refuse_foreign(named, error)
            raise


def padded(call: Softmax) -> SoftmaxOutput:
    """A batch whose rows all get T tokens, each after a past of its own length."""
    old_keys, old_values, seen = call.initial()
    L, T = old_keys.shape[1], call.q.shape[1]
    # Copies: the cache does not change with the caller's k, and does not keep alive what the window drops.
    keys, values = torch.cat([old_keys, call.k], 1), torch.cat([old_values, call.v], 1)
    out = attend(call, call.q, keys, values, (L - seen).clamp(min=0) if L else None)
    first = first_kept(call.window, L + T)
    if first > 0:
        keys, values = keys[:, first:].clone(), values[:, first:].clone()
    return SoftmaxOutput(out, KeyValues(keys, values, seen + T))


def packed(call: Softmax, offsets: list[int]) -> SoftmaxOutput:
    """Sequences one behind the other in one row, each attended by itself."""
    lengths = [end - begin for begin, end in pairwise(offsets)]
    padding = call.q.shape[1] - offsets[-1]
    old_keys, old_values, seen = call.initial()
    firsts = (old_keys.shape[1] - seen).clamp(min=0).tolist()
    # One split, not a slice for each: the gradient of a slice costs as much as the whole row.
    parts = zip(*(x.split([*lengths, padding], 1)[:-1] for x in (call.q, call.k, call.v)), strict=True)
    outs, keys, values = [], [], []
    for n, (first, (q, k, v)) in enumerate(zip(firsts, parts, strict=True)):
        row_keys = torch.cat([old_keys[n : n + 1, first:], k], 1)
        row_values = torch.cat([old_values[n : n + 1, first:], v], 1)
        outs.append(attend(call, q, row_keys, row_values, None))
        first = first_kept(call.window, row_keys.shape[1])
        keys.append(row_keys[0, first:])
        values.append(row_values[0, first:])
    outs.append(call.v.new_zeros(1, padding, call.heads, call.v.shape[3]))
    seen = seen + torch.tensor(lengths, dtype=torch.int64, device=seen.device)
    return SoftmaxOutput(torch.cat(outs, 1), KeyValues(aligned(keys, call.k), aligned(values, call.v), seen))


def first_kept(window: int | None, tokens: int) -> int:
    """The first of so many tokens that later ones can still see."""
    return 0 if window is None else max(0, tokens - window + 1)


def aligned(rows: list[Tensor], like: Tensor) -> Tensor:
    """Rows [tokens,heads,dim] of several lengths as one [N,L,heads,dim], zeros on the left."""
    if not rows:
        return like[:0, :0]
    L = max(row.shape[0] for row in rows)
    return torch.stack([F.pad(row, (0, 0, 0, 0, L - row.shape[0], 0)) for row in rows])


def attend(call: Softmax, q: Tensor, keys: Tensor, values: Tensor, blank: Tensor | None) -> Tensor:
    """Queries that stand at the end of the keys; the first blank[n] keys of row n are padding."""
    T, L, window = q.shape[1], keys.shape[1], call.window
    if T == 0:
        return values.new_zeros(q.shape[0], 0, call.heads, values.shape[3])
    if T == L and (window is None or window >= T):
        return dot_product(call, q, keys, values, None)
    # With a window a block is about as long as the window, whose keys all its queries share.
    size = BLOCK if window is None else min(BLOCK, max(SMALLEST_BLOCK, window))
    begins = range(L - T, L, size)
    seen = slices(keys, values, begins, window)
    if window is not None and window <= BLOCK and size < T:
        seen = copies(keys, values, begins, window)
    outs = []
    for begin, block, (places, key, value) in zip(begins, q.split(size, 1), seen, strict=True):
        query = torch.arange(begin, begin + block.shape[1], device=q.device)
        outs.append(dot_product(call, block, key, value, visible(query, places, blank, window)))
    return torch.cat(outs, 1)


def slices(keys: Tensor, values: Tensor, begins: range, window: int | None) -> Iterator[Seen]:
    """For each block of queries a view of the keys that it sees."""
    for begin in begins:
        first, end = first_kept(window, begin), min(begin + begins.step, keys.shape[1])
        yield torch.arange(first, end, device=keys.device), keys[:, first:end], values[:, first:end]


def copies(keys: Tensor, values: Tensor, begins: range, window: int) -> Iterable[Seen]:
    """For each block of queries a copy of the keys that it sees.

    The gradient of many slices of one tensor costs a whole tensor for each; that of one gather costs the gather. With
    blocks as long as the window the copies hold every key about twice.
    """
    device, step = keys.device, begins.step
    places = torch.stack([torch.arange(begin + 1 - window, begin + step, device=device) for begin in begins])
    rows = places.clamp(0, keys.shape[1] - 1).flatten()  # places outside the sequence are masked
    copied = (x.index_select(1, rows).unflatten(1, places.shape).unbind(1) for x in (keys, values))
    return zip(places, *copied, strict=True)


def visible(query: Tensor, key: Tensor, blank: Tensor | None, window: int | None) -> Tensor:
    """Which keys each query sees, [1 or N,1,queries,keys], by their places in the sequence."""
    mask = (key <= query[:, None]) & (key >= 0)
    if window is not None:
        mask = mask & (key > query[:, None] - window)
    return mask[None, None] if blank is None else mask & (key >= blank[:, None])[:, None, None]


def dot_product(call: Softmax, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """torch's kernel on [B,T,heads,dim], on all keys that the call's order allows when there is no mask."""
    V, T, H = v.shape[3], q.shape[1], call.heads
    # The fused kernels share heads of k and v among heads of q, but many of them not under a mask.
    shares = True
    if not (q.shape[2] == H and k.shape[2] == v.shape[2] and (mask is None or T == 1)):
        shares, (q, k, v) = False, (repeat_heads(x, H) for x in (q, k, v))
    if T > 1 and q.shape[3] != V:
        # They also want K = V, or the T x T scores are written out; zeros change neither scores nor values.
        q, k, v = (F.pad(x, (0, max(q.shape[3], V) - x.shape[3])) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal = mask is None and call.causal
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=call.scale, enable_gqa=shares)
    return out.transpose(1, 2)[..., :V]
