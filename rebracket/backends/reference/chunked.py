"""Parallel, chunked and recurrent form in one routine: C = T, any C, C = 1.

Inside a chunk, with S the state on entry and D, G the decays of `weights`:

    A = scale tril(q D k^T),   L = beta stril(r D k^T)
    (I + L) U = beta (V - (G * R) S)
    O = scale (G * Q) S + A U
    S' = Diag(G[C]) S + (D[C,.] * K)^T U
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rebracket.backends.reference.canonical import Canonical, canonical, finish, initial_memory
from rebracket.backends.reference.layout import Layout, layout
from rebracket.backends.reference.weights import Weights, weights
from rebracket.ops.call import Recurrence
from rebracket.ops.state import Output

STEPS = 64
"""Chunks of a sequence that are in flight together: bounds what a long call holds beside its inputs."""
SMALL_CHUNK = 16
"""Below this many tokens a chunk the states at chunk entries are recomputed for the backward pass, not kept."""


def run(call: Recurrence) -> Output:
    """The whole call in its chunks."""
    terms, per_token = canonical(call), call.per_token
    B, T = terms.v.shape[:2]
    cut = layout(offsets(call) * per_token, B * T, (call.chunk or T) * per_token)
    out, memory = scan_pieces(terms.each(cut.split), initial_memory(call)[cut.order], cut)
    return finish(call, cut.join(out, B, T)[:, per_token - 1 :: per_token], memory[cut.order.argsort()])


def offsets(call: Recurrence) -> Tensor:
    """Where every sequence begins and ends in the flat axis of tokens."""
    if call.cu_seqlens is not None:
        return call.cu_seqlens.to(torch.int64)
    return torch.arange(call.sizes.B + 1, device=call.q.device) * call.sizes.T


def scan_pieces(chunks: Canonical, memory: Tensor, cut: Layout) -> tuple[Tensor, Tensor]:
    """All chunks, STEPS steps of every sequence at a time; memory [N,H,K,V] in the order of the layout."""
    plans = [cut.alive[i : i + STEPS] for i in range(0, len(cut.alive), STEPS)]
    run_piece = scan_again if torch.is_grad_enabled() and chunks.v.shape[-2] < SMALL_CHUNK else scan
    out, ended = [chunks.v[:0]], []
    for plan, piece in zip(plans, chunks.pieces([sum(plan) for plan in plans]), strict=True):
        ended.append(memory[plan[0] :])
        o, memory = run_piece(piece, memory[: plan[0]], plan)
        out.append(o)
    return torch.cat(out), torch.cat([memory, *reversed(ended)])


def scan_again(chunks: Canonical, memory: Tensor, alive: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """`scan`, run a second time in the backward pass instead of kept."""
    return checkpoint(scan, chunks, memory, alive, use_reentrant=False, preserve_rng_state=False)  # type: ignore[return-value]


def scan(chunks: Canonical, memory: Tensor, alive: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A piece: everything inside the chunks at once, then the state from chunk to chunk, then the reads at once."""
    decay = weights(chunks.log_decay)
    if chunks.r is None:
        u = chunks.v if chunks.beta is None else chunks.beta * chunks.v
        entries, memory = add(decay.until_exit(chunks.k).mT @ u, decay, memory, alive)
    else:
        corrected, reads = solve(chunks, decay)
        entries, u, memory = correct(corrected, reads, decay.until_exit(chunks.k).mT, decay, memory, alive)
    return read(chunks, decay, entries, u), memory


def solve(chunks: Canonical, decay: Weights) -> tuple[Tensor, Tensor]:
    """(I + L)^-1 beta V and (I + L)^-1 beta (G * R): U is the first minus the second times S."""
    assert chunks.r is not None
    C, V = chunks.v.shape[-2:]
    right = torch.cat((chunks.v, decay.since_entry(chunks.r)), -1)
    within = decay.scores(chunks.r, chunks.k)
    if chunks.beta is not None:
        right, within = chunks.beta * right, chunks.beta * within
    if C > 1:
        right = torch.linalg.solve_triangular(within.tril(-1), right, upper=False, unitriangular=True)
    return right[..., :V], right[..., V:]


def add(written: Tensor, decay: Weights, memory: Tensor, alive: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Additive writing: the state on entry to every chunk, and after the last."""
    entries, ended = [], []
    for n, kv, factor in zip(alive, written.split(alive), factors(decay, alive), strict=True):
        ended.append(memory[n:])
        entries.append(memory[:n])
        memory = decayed(memory[:n], factor) + kv
    return torch.cat(entries), torch.cat([memory, *reversed(ended)])


def correct(
    corrected: Tensor, reads: Tensor, keys: Tensor, decay: Weights, memory: Tensor, alive: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Erasing: the state on entry to every chunk, what every token really writes, and the state after the last."""
    entries, written, ended = [], [], []
    steps = zip(
        alive, corrected.split(alive), reads.split(alive), keys.split(alive), factors(decay, alive), strict=True
    )
    for n, v, r, k, factor in steps:
        ended.append(memory[n:])
        entries.append(memory[:n])
        written.append(v - r @ entries[-1])
        memory = decayed(entries[-1], factor) + k @ written[-1]
    return torch.cat(entries), torch.cat(written), torch.cat([memory, *reversed(ended)])


def factors(decay: Weights, alive: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    """The factor of the state over every step's chunks."""
    over = decay.over_chunk()
    return (None,) * len(alive) if over is None else over.split(alive)


def decayed(memory: Tensor, factor: Tensor | None) -> Tensor:
    return memory if factor is None else factor * memory


def read(chunks: Canonical, decay: Weights, entries: Tensor, u: Tensor) -> Tensor:
    """O = scale (G * Q) S + A U."""
    if chunks.bonus is None:
        within = decay.scores(chunks.q, chunks.k).tril()
    else:
        decay = decay.before()
        own = (chunks.q * chunks.bonus[:, None, :] * chunks.k).sum(-1)
        within = decay.scores(chunks.q, chunks.k).tril(-1) + torch.diag_embed(own)
    return chunks.scale * (decay.since_entry(chunks.q) @ entries + within @ u)
