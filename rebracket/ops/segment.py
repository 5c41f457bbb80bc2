"""A stretch of sequence as a pair: what it does to the state it meets, and what it adds.

    S_out = M S_in + W,   (M2, W2) after (M1, W1) is (M2 M1, M2 W1 + W2)

The pair of a stretch needs no state to begin with, so stretches can be computed anywhere, in any order, and joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, final

import torch
from torch import Tensor

from rebracket.ops.attention import linear_attention
from rebracket.ops.checks import check_devices
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive


@final
@dataclass(frozen=True, eq=False)
class Segment:
    """The pair (M, W) of a stretch of tokens.

    S_out = M S_in + W

    Args:
        transition: M: [N,H,K], a diagonal, for additive rules; [N,H,K,K] for rules that read back.
        written: W, the state that the stretch leaves when it starts from nothing.

    Cost: K + K V numbers a head, K K + K V for erasing rules, whatever the length; for these `of` runs the stretch a
    second time, with K value columns, to know M. Who has the state before a stretch need not: passing it on is cheaper.

    Source: Blelloch 1990 (scans of linear recurrences); Martin and Cundy 2018; Yang et al. 2024 for erasing rules.

    Example:
        >>> import torch, rebracket as rb
        >>> k, v = torch.randn(1, 8, 2, 4), torch.randn(1, 8, 2, 5)
        >>> first, second = (rb.Segment.of(k[:, s], v[:, s]) for s in (slice(0, 3), slice(3, 8)))
        >>> whole = rb.Segment.of(k, v)
        >>> bool(torch.allclose(rb.compose(first, second).written.memory, whole.written.memory, atol=1e-5))
        True
    """

    transition: Tensor
    written: State

    @classmethod
    def of(
        cls,
        k: Tensor,
        v: Tensor,
        *,
        log_decay: Tensor | None = None,
        write: WriteRule = Additive(),
        normalize: bool = False,
        cu_seqlens: Tensor | None = None,
        backend: str = "auto",
    ) -> Self:
        """The pair of a stretch; the arguments are those of `linear_attention`, which raises what does not fit."""
        q = k[:, :: write.entries]
        _, written = linear_attention(
            q, k, v, log_decay=log_decay, write=write, normalize=normalize, cu_seqlens=cu_seqlens, backend=backend
        )
        if not write.reads_back:
            return cls(diagonal(log_decay, written, k.shape[1], cu_seqlens), written)
        N, H, K, _ = written.memory.shape
        identity = torch.eye(K, dtype=written.memory.dtype, device=k.device).expand(N, H, K, K)
        nothing, silent = v.new_zeros(*v.shape[:3], K), write.without_values(K)
        _, moved = linear_attention(
            q,
            k,
            nothing,
            log_decay=log_decay,
            write=silent,
            state=State(identity),
            cu_seqlens=cu_seqlens,
            backend=backend,
        )
        return cls(moved.memory, written)

    def apply(self, state: State) -> State:
        """The state after the stretch, for the state before it, of the same N, H, K, V."""
        memory = self.written.memory
        check_devices(memory, {"state.memory": state.memory, "state.key_sum": state.key_sum})
        if state.memory.shape != memory.shape:
            raise ValueError(f"state.memory must be [N,H,K,V] = {list(memory.shape)}, got {list(state.memory.shape)}")
        key_sum = self.written.key_sum
        if key_sum is not None:
            if state.key_sum is None:
                raise ValueError("state must hold key_sum for a segment made with normalize=True")
            key_sum = self.transition * state.key_sum + key_sum
        return State(move(self.transition, state.memory) + memory, key_sum)


def diagonal(log_decay: Tensor | None, written: State, T: int, cu_seqlens: Tensor | None) -> Tensor:
    """exp of the log-decays summed over the stretch, as [N,H,K]."""
    N, H, K, _ = written.memory.shape
    if log_decay is None:
        return written.memory.new_ones(N, H, K)
    exact = log_decay.to(written.memory.dtype)
    return over_time(exact, N, T, cu_seqlens).exp().reshape(N, H, -1).expand(N, H, K)


def over_time(log_decay: Tensor, N: int, T: int, cu_seqlens: Tensor | None) -> Tensor:
    """The sum over each sequence's tokens."""
    if log_decay.ndim == 1:
        lengths = [T] * N if cu_seqlens is None else cu_seqlens.diff().tolist()
        return (
            torch.stack([(log_decay * n).nan_to_num(nan=0.0, neginf=-torch.inf) for n in lengths])
            if N
            else log_decay[None][:0]
        )
    if cu_seqlens is None:
        return log_decay.sum(1)
    offsets = cu_seqlens.tolist()
    sums = [log_decay[0, a:b].sum(0) for a, b in pairwise(offsets)]
    return torch.stack(sums) if sums else log_decay[0, :0]


def move(transition: Tensor, memory: Tensor) -> Tensor:
    """M S for a diagonal or a full M; S may be an M as well."""
    if transition.ndim == 3:
        return transition[..., None] * memory
    with without_autocast(memory):
        return transition @ memory


def compose(first: Segment, second: Segment) -> Segment:
    """The pair of two stretches in a row: (M2 M1, M2 W1 + W2).

    The operation is associative, which is all that a parallel scan, a prefix cache or sequence parallelism needs.

    Args:
        first: the pair of the earlier stretch.
        second: the pair of the stretch behind it, of the same sizes and write rule.

    Returns:
        The pair of both.

    Raises:
        ValueError: the transitions differ in shape, or the second pair has a sum of keys and the first has none.

    Cost: K + 2 K V operations a head, 2 K K (K + V) for erasing rules, whatever the lengths.

    Source: Blelloch 1990.

    Example:
        >>> import torch, rebracket as rb
        >>> a, b = (rb.Segment.of(torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 5)) for _ in range(2))
        >>> rb.compose(a, b).transition.shape
        torch.Size([1, 2, 4])
    """
    if first.transition.shape != second.transition.shape:
        raise ValueError(
            f"segments must have transitions of one shape, got {list(first.transition.shape)} and "
            f"{list(second.transition.shape)}; make both with the same write rule"
        )
    diagonal = first.transition.ndim == 3
    both = first.transition * second.transition if diagonal else move(second.transition, first.transition)
    return Segment(both, second.apply(first.written))


def scan(segments: Iterable[Segment], state: State) -> list[State]:
    """The states at the borders of consecutive stretches: before the first, between them, after the last.

    S_0 = state,   S_i = M_i S_{i-1} + W_i

    Args:
        segments: the pairs of n stretches in order.
        state: the state before the first, N, H, K, V as theirs.

    Returns:
        n + 1 states.

    Raises:
        ValueError: the state does not fit a segment.

    Cost: 2 K V operations a stretch and head, 2 K K V for erasing rules.

    Source: Blelloch 1990.

    Example:
        >>> import torch, rebracket as rb
        >>> k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 5)
        >>> pieces = [rb.Segment.of(k[:, s], v[:, s]) for s in (slice(0, 2), slice(2, 6))]
        >>> len(rb.scan(pieces, rb.State.zeros(1, 2, 4, 5)))
        3
    """
    states = [state]
    for segment in segments:
        states.append(segment.apply(states[-1]))
    return states
