"""A stretch of sequence as a pair: what it does to the state it meets, and what it adds.

    S_out = M S_in + W,   (M2, W2) after (M1, W1) is (M2 M1, M2 W1 + W2)

The pair needs no state to begin with, so stretches can be computed anywhere and in any order, and joined afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self, final

import torch
from torch import Tensor

from rebracket.ops.call import Recurrence
from rebracket.ops.checks import check_devices
from rebracket.ops.lowering import make_call
from rebracket.ops.plan import run
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

    Cost: K + K V numbers a head, K K + K V for erasing rules, whatever the length. For erasing rules `of` runs the
    stretch a second time, with K value columns, to find M: where the state before a stretch is known, passing it on is
    cheaper.

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
        call = make_call(q, k, v, log_decay, write, None, normalize, None, None, cu_seqlens, causal=True)
        written = run(call, "auto", None, backend).state
        if not write.reads_back:
            return cls(diagonal(call), written)
        # What a stretch without values does to the identity.
        N, H, K, _ = written.memory.shape
        identity = torch.eye(K, dtype=call.dtype, device=k.device).expand(N, H, K, K)
        silent = replace(call, v=call.v.new_zeros(*call.v.shape[:3], K), memory=identity)
        return cls(run(silent, "auto", None, backend).state.memory, written)

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


def diagonal(call: Recurrence) -> Tensor:
    """exp of the log-decays summed over each sequence, [N,H,K]."""
    N, sizes = call.sequences, call.sizes
    if call.log_decay is None:
        return torch.ones(N, sizes.H, sizes.K, dtype=call.dtype, device=call.q.device)
    exact = call.log_decay.to(call.dtype)
    exact = exact if exact.ndim == 4 else exact.expand(sizes.B, sizes.T, sizes.H)[..., None]
    if call.cu_seqlens is None:
        sums = exact.sum(1)
    else:
        spans = pairwise(call.cu_seqlens.tolist())
        sums = torch.stack([exact[0, a:b].sum(0) for a, b in spans]) if N else exact[0, :0]
    return sums.exp().expand(N, sizes.H, sizes.K)


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
