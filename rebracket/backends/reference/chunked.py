"""Parallel, chunked and recurrent form in one routine: C = T, any C, C = 1.

Inside a chunk, with S the state on entry and D, G the decays of `weights`:

    A = scale tril(q D k^T),   L = beta stril(r D k^T)
    (I + L) U = beta (V - (G * R) S)
    O = scale (G * Q) S + A U
    S' = Diag(G[C]) S + (D[C,.] * K)^T U

`run` cuts a call into chunks and joins what `scan` computes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rebracket.backends.reference.canonical import Canonical, canonical, finish
from rebracket.backends.reference.weights import weights
from rebracket.ops.call import Recurrence
from rebracket.ops.native import transforms
from rebracket.ops.state import Output

STEPS = 64
"""Chunks of a sequence that are computed together: bounds what a long call holds beside its inputs."""
SMALL_CHUNK = 16
"""Below this many tokens a chunk the states at chunk entries are recomputed for the backward pass, not kept."""


def run(call: Recurrence) -> Output:
    """The whole call: cut into chunks, computed STEPS chunks of every sequence at a time, joined again."""
    terms, memory = canonical(call)
    B, T, H = terms.v.shape[:3]
    if call.cu_seqlens is None:
        offsets = torch.arange(B + 1, device=memory.device) * T
    else:
        offsets = call.cu_seqlens.to(torch.int64) * call.per_token
    cut = Cut.of(offsets, H, (call.chunk or T) * call.per_token)
    # Where there are no tokens there is one empty piece, so that every term has a gradient.
    pieces = [cut.running[i : i + STEPS] for i in range(0, len(cut.running), STEPS)] or [[]]
    sizes = [sum(running) for running in pieces]
    scan_piece: Callable[..., Any] = scan
    if torch.is_grad_enabled() and cut.C < SMALL_CHUNK and not transforms():  # under those nothing can be recomputed
        scan_piece = partial(checkpoint, scan, use_reentrant=False, preserve_rng_state=False)
    # One split into all pieces: the gradient of a slice would be as large as the whole, for every piece.
    # The first is empty: without it the peak of a call grows faster than its tokens (the law of memory).
    empty, *parts = terms.split(lambda x: cut.split(x).split([0, *sizes]))
    memory, out, ended = memory[cut.order], [empty.v], []
    for running, chunks in zip(pieces, parts, strict=True):
        rows = running[0] if running else 0
        ended.append(memory[rows:])
        o, memory = scan_piece(chunks, memory[:rows], running)
        out.append(o)
    memory = torch.cat([memory, *reversed(ended)])[cut.order.argsort()]
    return finish(call, cut.join(torch.cat(out), B, T), memory)


@final
@dataclass(frozen=True, eq=False)
class Cut:
    """M chunks of C tokens in the order of their steps: the first chunk of every sequence, then the second, ...

    The longest sequence comes first, so that those still running at a step are the first rows of its state.

    Args:
        M: how many chunks.
        H: heads of everything that is cut.
        C: tokens of a chunk, no more than the longest sequence has.
        places: where chunks [M,H,C] hold each token's heads; tokens behind the last sequence are left out.
        running: sequences that have a chunk at each step.
        order: the sequences by falling length.
    """

    M: int
    H: int
    C: int
    places: Tensor
    running: list[int]
    order: Tensor

    @classmethod
    def of(cls, offsets: Tensor, H: int, C: int) -> Cut:
        """The chunks of sequences between offsets [N+1] in a flat axis of tokens."""
        lengths = offsets.diff()
        N, device = len(lengths), offsets.device
        C = max(min(C, int(lengths.max())), 1) if N else C
        order = lengths.argsort(descending=True, stable=True)
        chunks = (lengths + C - 1) // C
        steps = torch.arange(int(chunks.max()) if N else 0, device=device)
        running = N - torch.searchsorted(chunks.sort().values, steps, right=True)
        sequence = torch.arange(N, device=device).repeat_interleave(lengths)
        place = torch.arange(len(sequence), device=device) - offsets[sequence]
        chunk = (running.cumsum(0) - running)[place // C] + order.argsort()[sequence]
        places = (chunk[:, None] * H + torch.arange(H, device=device)) * C + (place % C)[:, None]
        return cls(int(running.sum()), H, C, places.flatten(), running.tolist(), order)

    def split(self, x: Tensor) -> Tensor:
        """x [B,T,H,D] as chunks [M,H,C,D], zeros where a chunk has no token."""
        D = x.shape[-1]
        rows = x.reshape(-1, D)[: len(self.places)]
        chunks = x.new_zeros(self.M * self.H * self.C, D).index_copy(0, self.places, rows)
        return chunks.view(self.M, self.H, self.C, D)

    def join(self, chunks: Tensor, B: int, T: int) -> Tensor:
        """Chunks [M,H,C,D] as x [B,T,H,D], zeros for tokens of no sequence."""
        D = chunks.shape[-1]
        rows = chunks.reshape(-1, D).index_select(0, self.places)
        return F.pad(rows, (0, 0, 0, B * T * self.H - len(rows))).view(B, T, self.H, D)


def scan(chunks: Canonical, memory: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """Outputs [M,H,C,V] of consecutive steps, and every sequence's state [N,H,K,V] after its last chunk."""
    q, k, v, r, beta, bonus = chunks.q, chunks.k, chunks.v, chunks.r, chunks.beta, chunks.bonus
    decay = weights(chunks.log_decay)

    # Inside the chunks, all at once: U = u - reads S.
    if r is None:
        u, reads = v if beta is None else beta * v, None
    else:
        u, L = torch.cat((v, decay.since_entry(r)), -1), decay.scores(r, k)
        if beta is not None:
            u, L = beta * u, beta * L
        if L.shape[-1] > 1:
            u = torch.linalg.solve_triangular(L.tril(-1), u, upper=False, unitriangular=True)
        u, reads = u.split((v.shape[-1], r.shape[-1]), -1)

    # From chunk to chunk, all sequences that are still running in one step.
    keys, ended = decay.until_exit(k).mT, []
    # Nothing to join where there are no steps; elsewhere the gradient of an empty slice would be as large as the whole.
    entries, written = ([], []) if running else ([memory[:0]], [u[:0]])
    tensors = (keys @ u if reads is None else u, reads, keys, decay.over_chunk())
    steps: list[Sequence[Any]] = [[None] * len(running) if x is None else x.split(running) for x in tensors]
    for n, added, r_n, k_n, factor in zip(running, *steps, strict=True):
        ended.append(memory[n:])
        memory = memory[:n]
        entries.append(memory)
        if r_n is not None:
            written.append(added - r_n @ memory)
            added = k_n @ written[-1]
        memory = (memory if factor is None else factor * memory) + added
    S, U = torch.cat(entries), u if reads is None else torch.cat(written)

    # What is read.
    if bonus is None:
        A = decay.scores(q, k).tril()
    else:
        decay = decay.before()
        A = decay.scores(q, k).tril(-1) + torch.diag_embed((q * bonus[:, None, :] * k).sum(-1))
    return chunks.scale * (decay.since_entry(q) @ S + A @ U), torch.cat([memory, *reversed(ended)])
