"""Parallel, chunked and recurrent form in one routine: C = T, any C, C = 1.

Inside a chunk, with S the state on entry and D, G the decays of `weights`:

    A = scale tril(q D k^T),   L = beta stril(r D k^T)
    (I + L) U = beta (V - (G * R) S)
    O = scale (G * Q) S + A U
    S' = Diag(G[C]) S + (D[C,.] * K)^T U
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rebracket.backends.reference.canonical import canonical, finish
from rebracket.backends.reference.layout import Layout, layout
from rebracket.backends.reference.weights import Weights, weights
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output

STEPS = 64
"""Chunks of a sequence that are in flight together: bounds what a long call holds beside its inputs."""
SMALL_CHUNK = 16
"""Below this many tokens a chunk the states at chunk entries are recomputed for the backward pass, not kept."""


class Chunks(NamedTuple):
    """Terms of M chunks: q, k, r [M,H,C,K], v [M,H,C,V], beta [M,H,C,1], log_decay [M,H,C,1 or K], bonus [H,K]."""

    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    beta: Tensor | None
    log_decay: Tensor | None
    bonus: Tensor | None


def run(call: Recurrence, chunk: int) -> Output:
    """The whole call in chunks of `chunk` tokens."""
    terms = canonical(call)
    per_token = call.writes.per_token
    B, T = terms.v.shape[:2]
    cut = layout(offsets(call) * per_token, B * T, chunk * per_token)
    timed = [
        None if x is None else cut.split(x)
        for x in (terms.q, terms.k, terms.v, terms.r, column(terms.beta), terms.log_decay)
    ]
    memory = terms.memory[cut.order]
    out, memory = scan_pieces(Chunks(*timed, terms.bonus), memory, cut, call.scale)  # type: ignore[arg-type]
    joined = cut.join(out, B)
    return finish(call, joined[:, per_token - 1 :: per_token], memory[cut.order.argsort()])


def column(beta: Tensor | None) -> Tensor | None:
    return None if beta is None else beta[..., None]


def offsets(call: Recurrence) -> Tensor:
    """Where every sequence begins and ends in the flat axis of tokens."""
    if call.cu_seqlens is not None:
        return call.cu_seqlens.to(torch.int64)
    return torch.arange(call.sizes.B + 1, device=call.q.device) * call.sizes.T


def scan_pieces(chunks: Chunks, memory: Tensor, cut: Layout, scale: float) -> tuple[Tensor, Tensor]:
    """All chunks, STEPS steps of every sequence at a time; memory [N,H,K,V] in the order of the layout."""
    plans = [cut.alive[i : i + STEPS] for i in range(0, len(cut.alive), STEPS)]
    pieces = split_pieces(chunks, [sum(plan) for plan in plans])
    recompute = torch.is_grad_enabled() and chunks.v.shape[-2] < SMALL_CHUNK
    out, ended = [chunks.v[:0]], []
    for plan, piece in zip(plans, pieces, strict=True):
        ended.append(memory[plan[0] :])
        arguments = (piece, memory[: plan[0]], plan, scale)
        o, memory = (
            checkpoint(scan, *arguments, use_reentrant=False, preserve_rng_state=False)
            if recompute
            else scan(*arguments)
        )
        out.append(o)
    return torch.cat(out), torch.cat([memory, *reversed(ended)])


def split_pieces(chunks: Chunks, sizes: list[int]) -> list[Chunks]:
    """The chunks of every piece. One split, because a slice per piece costs a full-sized gradient each."""
    parts = [[x] * len(sizes) if x is None else x.split(sizes) for x in chunks[:-1]]
    return [Chunks(*piece, chunks.bonus) for piece in zip(*parts, strict=True)]


def scan(chunks: Chunks, memory: Tensor, alive: tuple[int, ...], scale: float) -> tuple[Tensor, Tensor]:
    """A piece: everything inside the chunks at once, then the state from chunk to chunk, then the reads at once."""
    decay = weights(chunks.log_decay)
    if chunks.r is None:
        u = chunks.v if chunks.beta is None else chunks.beta * chunks.v
        entries, memory = add(decay.until_exit(chunks.k).mT @ u, decay, memory, alive)
    else:
        corrected, reads = solve(chunks, decay)
        entries, u, memory = correct(corrected, reads, decay.until_exit(chunks.k).mT, decay, memory, alive)
    return read(chunks, decay, entries, u, scale), memory


def solve(chunks: Chunks, decay: Weights) -> tuple[Tensor, Tensor]:
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


def read(chunks: Chunks, decay: Weights, entries: Tensor, u: Tensor, scale: float) -> Tensor:
    """O = scale (G * Q) S + A U."""
    if chunks.bonus is None:
        within = decay.scores(chunks.q, chunks.k).tril()
    else:
        decay = decay.before()
        own = (chunks.q * chunks.bonus[:, None, :] * chunks.k).sum(-1)
        within = decay.scores(chunks.q, chunks.k).tril(-1) + torch.diag_embed(own)
    return scale * (decay.since_entry(chunks.q) @ entries + within @ u)
