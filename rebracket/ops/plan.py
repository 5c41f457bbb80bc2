"""What a call will run and what it costs, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rebracket.base.checks import truth
from rebracket.ops import bidirectional
from rebracket.ops.backend import Backend, choose, reasons
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.validate import MODES, check_mode


@final
@dataclass(frozen=True)
class Cost:
    """Operations (a multiply-add is 2) and bytes moved to and from memory by one forward call."""

    operations: int
    nbytes: int


@final
@dataclass(frozen=True)
class Plan:
    """The backend, mode and chunk that a call would run, the reasons, and the cost of each mode.

    Args:
        backend: name of the backend.
        mode: "parallel", "chunk" or "recurrent".
        chunk: tokens per chunk, C; T in parallel mode, 1 in recurrent mode.
        reasons: why, a sentence each.
        costs: operations and bytes of the call in each mode.
        state_nbytes: bytes of the state, whatever T is.

    Cost: of making one, nothing that grows with a tensor.

    Example:
        >>> import torch, rebracket as rb
        >>> x = torch.randn(1, 256, 2, 16)
        >>> rb.explain(x, x, x).mode
        'chunk'
    """

    backend: str
    mode: str
    chunk: int
    reasons: tuple[str, ...]
    costs: dict[str, Cost]
    state_nbytes: int

    def __str__(self) -> str:
        head = f"backend {self.backend}, mode {self.mode}, chunk {self.chunk}, state {self.state_nbytes:,} bytes"
        rows = [
            f"  {mode:<10} {cost.operations:>20,} operations {cost.nbytes:>16,} bytes"
            for mode, cost in self.costs.items()
        ]
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons), *rows])


def decide(call: Recurrence, mode: str, chunk: int | None, backend: str, causal: bool) -> tuple[Backend, str, int]:
    """The backend, mode and chunk of one call."""
    check_mode(mode, chunk)
    truth("causal", causal)
    if not causal:
        bidirectional.check(call)
    mode, _ = choose_mode(call, mode, chunk, causal)
    chosen = choose(call, backend, asked_chunk(mode, call, chunk, causal))
    return chosen, mode, wanted_chunk(mode, call, chunk) or chosen.chunk


def plan(call: Recurrence, mode: str, chunk: int | None, backend: str, causal: bool) -> Plan:
    """The decision with its reasons and costs."""
    chosen, decided, C = decide(call, mode, chunk, backend, causal)
    costs = {name: cost(call, name, wanted_chunk(name, call, chunk) or chosen.chunk, causal) for name in MODES}
    why = (
        *reasons(call, backend, chosen, asked_chunk(decided, call, chunk, causal)),
        f"mode {decided!r}: {choose_mode(call, mode, chunk, causal)[1]}",
    )
    return Plan(chosen.name, decided, C, why, costs, state_nbytes(call))


def choose_mode(call: Recurrence, mode: str, chunk: int | None, causal: bool) -> tuple[str, str]:
    """The mode to run and why."""
    if mode != "auto":
        return mode, "asked for"
    if chunk is not None:
        return "chunk", "a chunk was asked for"
    if not causal and bidirectional.one_pass(call, "parallel"):
        return "parallel", "not causal and without decay: one pass in plain torch, linear in T"
    return "chunk", "linear in T; a sequence shorter than a chunk is one chunk"


def wanted_chunk(mode: str, call: Recurrence, chunk: int | None) -> int | None:
    """Tokens per chunk that a mode asks for; None leaves it to the backend."""
    if mode == "recurrent":
        return 1
    return max(call.sizes.T, 1) if mode == "parallel" else chunk


def asked_chunk(mode: str, call: Recurrence, chunk: int | None, causal: bool) -> int | None:
    """Tokens per chunk that the backend has to run; one pass over all tokens has no chunks, so any backend will do."""
    return None if not causal and bidirectional.one_pass(call, mode) else wanted_chunk(mode, call, chunk)


def cost(call: Recurrence, mode: str, C: int, causal: bool) -> Cost:
    """Least operations and bytes of the forward call in one mode, whose chunks are of C tokens."""
    if causal:
        return Cost(operations(call, C), nbytes(call, C))
    if bidirectional.one_pass(call, mode):
        return Cost(operations(call, 0), nbytes(call, C))
    return Cost(2 * operations(call, C), 2 * nbytes(call, C))


def operations(call: Recurrence, C: int) -> int:
    """Operations of one direction when each token meets those of its chunk of C (triangles count half)."""
    sizes, writes = call.sizes, call.writes
    K, V, C = sizes.K, sizes.V + call.normalize, C * writes.per_token
    erasing = writes.r is not None
    a_write = C * (K + V) * (2 if erasing else 1) + (6 if erasing else 4) * K * V
    return a_write * sizes.B * sizes.T * sizes.H * writes.per_token


def nbytes(call: Recurrence, C: int) -> int:
    """Bytes of one direction: inputs, output, and the state read and written at each chunk."""
    chunks = -(-call.sizes.B * call.sizes.T // C)
    return input_nbytes(call) + 2 * chunks * state_nbytes(call) // max(call.sequences, 1)


def input_nbytes(call: Recurrence) -> int:
    """Bytes of the inputs and of the output."""
    sizes, writes = call.sizes, call.writes
    read = (call.q, writes.k, writes.v, None if writes.r is writes.k else writes.r, writes.beta, call.log_decay)
    inputs = sum(x.numel() * x.element_size() for x in read if x is not None)
    return inputs + sizes.B * sizes.T * sizes.H * sizes.V * call.q.element_size()


def state_nbytes(call: Recurrence) -> int:
    """Bytes of the state."""
    sizes = call.sizes
    return call.sequences * sizes.H * sizes.K * (sizes.V + call.normalize) * call.dtype.itemsize
