"""What a call will run and what it costs, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

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
    mode, _ = choose_mode(mode, chunk, causal)
    wanted = wanted_chunk(mode, call, chunk)
    chosen = choose(call, backend, wanted)
    return chosen, mode, wanted or chosen.chunk


def plan(call: Recurrence, mode: str, chunk: int | None, backend: str, causal: bool) -> Plan:
    """The decision with its reasons and costs."""
    chosen, decided, C = decide(call, mode, chunk, backend, causal)
    costs = {name: cost(call, wanted_chunk(name, call, chunk) or chosen.chunk) for name in MODES}
    why = (
        *reasons(call, backend, chosen, wanted_chunk(decided, call, chunk)),
        f"mode {decided!r}: {choose_mode(mode, chunk, causal)[1]}",
    )
    return Plan(chosen.name, decided, C, why, costs, state_nbytes(call))


def choose_mode(mode: str, chunk: int | None, causal: bool) -> tuple[str, str]:
    """The mode to run and why."""
    if mode != "auto":
        return mode, "asked for"
    if chunk is not None:
        return "chunk", "a chunk was asked for"
    if not causal:
        return "parallel", "not causal"
    return "chunk", "linear in T; a sequence shorter than a chunk is one chunk"


def wanted_chunk(mode: str, call: Recurrence, chunk: int | None) -> int | None:
    """Tokens per chunk that a mode asks for; None leaves it to the backend."""
    if mode == "recurrent":
        return 1
    return max(call.sizes.T, 1) if mode == "parallel" else chunk


def cost(call: Recurrence, C: int) -> Cost:
    """Least operations and bytes of the forward call in chunks of C tokens (triangles count half)."""
    sizes, writes = call.sizes, call.writes
    K, V, C = sizes.K, sizes.V + call.normalize, C * writes.per_token
    erasing = writes.r is not None
    a_write = C * (K + V) * (2 if erasing else 1) + (6 if erasing else 4) * K * V
    operations = a_write * sizes.B * sizes.T * sizes.H * writes.per_token
    chunks = -(-sizes.B * sizes.T * writes.per_token // C)
    return Cost(operations, input_nbytes(call) + 2 * chunks * state_nbytes(call) // max(call.sequences, 1))


def input_nbytes(call: Recurrence) -> int:
    """Bytes of the inputs and of the output."""
    sizes, writes = call.sizes, call.writes
    distinct = {id(x): x for x in (call.q, writes.k, writes.v, writes.r, writes.beta, call.log_decay) if x is not None}
    inputs = sum(x.numel() * x.element_size() for x in distinct.values())
    return inputs + sizes.B * sizes.T * sizes.H * sizes.V * call.q.element_size()


def state_nbytes(call: Recurrence) -> int:
    """Bytes of the state."""
    sizes = call.sizes
    return call.sequences * sizes.H * sizes.K * (sizes.V + call.normalize) * call.dtype.itemsize
