"""What a call runs and what it costs: the choice of backend, mode and chunk, with its reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from rebracket.ops import bidirectional
from rebracket.ops.backend import Backend, choose, reasons
from rebracket.ops.call import Recurrence
from rebracket.ops.checks import MODES, check_mode
from rebracket.ops.state import Output


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


def decide(call: Recurrence, mode: str, chunk: int | None, backend: str) -> tuple[Backend, str, Recurrence]:
    """The backend, the mode, and the call with its chunk."""
    check_mode(mode, chunk)
    if not call.causal:
        bidirectional.check(call)
    mode = choose_mode(call, mode, chunk)[0]
    asked = in_mode(call, mode, chunk)
    chosen = choose(asked, backend)
    return chosen, mode, chosen.settled(asked)


def choose_mode(call: Recurrence, mode: str, chunk: int | None) -> tuple[str, str]:
    """The mode to run and why."""
    if mode != "auto":
        return mode, "asked for"
    if chunk is not None:
        return "chunk", "a chunk was asked for"
    if bidirectional.one_pass(call, "parallel"):
        return "parallel", "not causal and without decay: one pass in plain torch, linear in T"
    return "chunk", "linear in T; a sequence shorter than a chunk is one chunk"


def in_mode(call: Recurrence, mode: str, chunk: int | None) -> Recurrence:
    """The call with the tokens a chunk of its mode; one pass over all tokens has no chunks, so any backend will do."""
    if mode == "recurrent":
        return replace(call, chunk=1)
    if mode == "parallel" and not bidirectional.one_pass(call, mode):
        return replace(call, chunk=max(call.q.shape[1], 1))
    return call if chunk is None else replace(call, chunk=chunk)


def run(call: Recurrence, mode: str, chunk: int | None, backend: str) -> Output:
    """Computes a call as it was decided."""
    chosen, mode, settled = decide(call, mode, chunk, backend)
    return chosen.run(settled) if call.causal else bidirectional.run(chosen, settled, mode)


def plan(call: Recurrence, mode: str, chunk: int | None, backend: str) -> Plan:
    """The decision with its reasons and costs."""
    chosen, decided, settled = decide(call, mode, chunk, backend)
    costs = {name: cost(chosen.settled(in_mode(call, name, chunk)), name) for name in MODES}
    why = choose_mode(call, mode, chunk)[1]
    because = (*reasons(in_mode(call, decided, chunk), backend, chosen), f"mode {decided!r}: {why}")
    return Plan(chosen.name, decided, tokens_a_chunk(settled, decided), because, costs, state_nbytes(call))


def tokens_a_chunk(call: Recurrence, mode: str) -> int:
    """C; all tokens in parallel mode."""
    return max(call.q.shape[1], 1) if mode == "parallel" or call.chunk is None else call.chunk


def cost(call: Recurrence, mode: str) -> Cost:
    """Least operations and bytes of the forward call in one mode."""
    C = tokens_a_chunk(call, mode)
    if bidirectional.one_pass(call, mode):
        return Cost(operations(call, 0), nbytes(call, C))
    ways = 1 if call.causal else 2
    return Cost(ways * operations(call, C), ways * nbytes(call, C))


def operations(call: Recurrence, C: int) -> int:
    """Operations of one direction when each token meets those of its chunk of C (triangles count half)."""
    sizes, C = call.sizes, C * call.per_token
    K, V, erasing = sizes.K, sizes.V + call.normalize, call.read_back is not None
    a_write = C * (K + V) * (2 if erasing else 1) + (6 if erasing else 4) * K * V
    return a_write * sizes.B * sizes.T * sizes.H * call.per_token


def nbytes(call: Recurrence, C: int) -> int:
    """Bytes of one direction: inputs, output, and the state read and written at each chunk."""
    sizes = call.sizes
    read = (call.q, call.k, call.v, call.r, call.beta, call.log_decay)
    inputs = sum(x.numel() * x.element_size() for x in read if x is not None)
    output = sizes.B * sizes.T * sizes.H * sizes.V * call.q.element_size()
    chunks = -(-sizes.B * sizes.T // C)
    return inputs + output + 2 * chunks * state_nbytes(call) // max(call.sequences, 1)


def state_nbytes(call: Recurrence) -> int:
    """Bytes of the state."""
    sizes = call.sizes
    return call.sequences * sizes.H * sizes.K * (sizes.V + call.normalize) * call.dtype.itemsize
