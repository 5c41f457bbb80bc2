"""flash-linear-attention's naive torch functions: its fast ones need a GPU."""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, final

from torch import Tensor

from rebracket.bench.case import Implementation, NotCoveredError, Prepared, require, require_installed
from rebracket.bench.cases.base import AttentionInputs, prepare_sequence, prepare_token
from rebracket.bench.cases.linear_attention import LinearAttentionCase
from rebracket.ops.state import State

GET = "pip install --no-deps fla-core einops"
FOLDERS = {"linear": "linear_attn", "delta": "delta_rule", "gated_delta": "gated_delta_rule"}
CHUNK = 64
LONGEST = 4096
"""Tokens over which a rule without a function in chunks is worth waiting for."""


@final
class Fla(Implementation):
    """The functions in chunks; for GLA the loop over tokens, which is all there is."""

    operator = LinearAttentionCase
    name = "fla naive"

    def prepare(self, case: LinearAttentionCase, x: AttentionInputs, threads: int) -> Prepared:
        require_installed("fla", GET)
        require_installed("einops", GET)
        module = naive(FOLDERS.get(case.name, case.name))
        if x.state is not None:
            return prepare_token(partial(TOKENS[case.name], module, x, x.state))
        require(case.shape[1] % CHUNK == 0, f"T must be a multiple of {CHUNK}")
        require(case.name != "gla" or case.shape[1] <= LONGEST, f"a loop over tokens: T up to {LONGEST}")
        return prepare_sequence(case, x, partial(SEQUENCES[case.name], module))

    def growth(self, case: LinearAttentionCase) -> float:
        return 2.0 if case.mode == "train" else 1.0  # the gradient of every chunk has the size of all


@cache
def naive(folder: str) -> Any:  # noqa: ANN401
    """The file naive.py of an operator, by itself: its package needs Triton."""
    package = importlib.util.find_spec("fla")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(next(iter(package.submodule_search_locations)), "ops", folder, "naive.py")
    spec = importlib.util.spec_from_file_location(f"fla_naive_{folder}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise NotCoveredError(f"this version has no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def heads_first(*tensors: Tensor | None) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors if x is not None]


SEQUENCES: dict[str, Callable[[Any, AttentionInputs], Tensor]] = {
    "linear": lambda fla, x: fla.naive_chunk_linear_attn(x.q, x.k, x.v, scale=1.0, normalize=True),
    "simple_gla": lambda fla, x: fla.naive_chunk_simple_gla(x.q, x.k, x.v, x.log_decay)[0],
    "gla": lambda fla, x: fla.naive_recurrent_gla(x.q, x.k, x.v, x.log_decay)[0],
    "delta": lambda fla, x: fla.delta_rule_chunkwise(*heads_first(x.q, x.k, x.v, x.beta), CHUNK)[0].transpose(1, 2),
    "gated_delta": lambda fla, x: fla.naive_chunk_gated_delta_rule(x.q, x.k, x.v, x.log_decay, x.beta)[0],
    "kda": lambda fla, x: fla.naive_chunk_kda(x.q, x.k, x.v, x.log_decay, x.beta)[0],
}
"""out [B,T,H,D] of a sequence, from the file's functions."""


def linear_token(fla: Any, x: AttentionInputs, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
    assert state.key_sum is not None
    before = state.memory, state.key_sum.unsqueeze(1)
    out, (memory, key_sum) = fla.naive_recurrent_linear_attn(x.q, x.k, x.v, 1.0, before, True, True)
    return out, State(memory, key_sum.squeeze(1))


def delta_token(fla: Any, x: AttentionInputs, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
    out, memory = fla.delta_rule_recurrence(*heads_first(x.q, x.k, x.v, x.beta), state.memory)
    return out.transpose(1, 2), State(memory)


def plain(made: tuple[Tensor, Tensor]) -> tuple[Tensor, State]:
    return made[0], State(made[1])


TOKENS: dict[str, Callable[[Any, AttentionInputs, State], tuple[Tensor, State]]] = {
    "linear": linear_token,
    "simple_gla": lambda fla, x, s: plain(fla.naive_recurrent_simple_gla(x.q, x.k, x.v, x.log_decay, None, s.memory)),
    "gla": lambda fla, x, s: plain(fla.naive_recurrent_gla(x.q, x.k, x.v, x.log_decay, s.memory, True)),
    "delta": delta_token,
    "gated_delta": lambda fla, x, s: plain(
        fla.naive_recurrent_gated_delta_rule(x.q, x.k, x.v, x.beta, x.log_decay, None, s.memory, True)
    ),
    "kda": lambda fla, x, s: plain(fla.naive_recurrent_kda(x.q, x.k, x.v, x.log_decay, x.beta, None, s.memory, True)),
}
"""out [B,1,H,D] of one token and the state after it."""
