"""The entrants of this package: its backends, and softmax attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from torch import Tensor

from rebracket.bench.cases import SOFTMAX, Case, Inputs
from rebracket.bench.entrant import Attempt, Entrant, NotCoveredError, require
from rebracket.bench.torch_call import attempt, decoding
from rebracket.ops.attention import explain, linear_attention, step
from rebracket.ops.backend import INSTALLED
from rebracket.ops.softmax import softmax_attention
from rebracket.ops.state import Output
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta


@final
class Ours(Entrant):
    """One of the installed backends."""

    is_peer = False

    def __init__(self, backend: str) -> None:
        self.name = backend

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        require(case.rule is not SOFTMAX, "softmax is no recurrence")
        refuse_uncovered(case, x, self.name)
        if case.mode == "decode":
            return decoding(one_token(case, x, self.name))
        return attempt(case, x, partial(attended, case.rule.normalizes, self.name))


@final
class Softmax(Entrant):
    """`softmax_attention`, which is torch's kernel."""

    name = "softmax_attention"
    is_peer = False

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        require(case.rule is SOFTMAX, "it is softmax attention")
        require(case.mode != "decode", "its state grows with every token")
        return attempt(case, x, lambda x: softmax_attention(x.q, x.k, x.v).out)

    def growth(self, case: Case) -> float:
        return 2.0


def backends() -> tuple[Entrant, ...]:
    """Every installed backend, the best first."""
    return tuple(map(Ours, INSTALLED))


def refuse_uncovered(case: Case, x: Inputs, backend: str) -> None:
    try:
        explain(
            x.q, x.k, x.v, log_decay=x.log_decay, write=x.write, normalize=case.rule.normalizes, state=x.state,
            backend=backend,
        )  # fmt: skip
    except ValueError as error:
        raise NotCoveredError(str(error)) from error


def attended(normalize: bool, backend: str, x: Inputs) -> Tensor:
    return linear_attention(
        x.q, x.k, x.v, log_decay=x.log_decay, write=x.write, normalize=normalize, backend=backend
    ).out


def one_token(case: Case, x: Inputs, backend: str) -> Callable[[], Output]:
    """The step, in place."""
    q, k, v = (x.squeeze(1) for x in (x.q, x.k, x.v))
    log_decay = None if x.log_decay is None else x.log_decay.squeeze(1)
    write = Additive() if x.beta is None else Delta(x.beta.squeeze(1))
    assert x.state is not None
    return partial(
        step, q, k, v, state=x.state, log_decay=log_decay, write=write, normalize=case.rule.normalizes, inplace=True,
        backend=backend,
    )  # fmt: skip
