"""The torch functions that Hugging Face transformers falls back to on a CPU."""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from rebracket.bench.case import Implementation, Prepared, require, require_installed
from rebracket.bench.cases.base import AttentionInputs, prepare_sequence, prepare_token
from rebracket.bench.cases.linear_attention import LinearAttentionCase
from rebracket.ops.state import State

Function = Callable[..., tuple[Tensor, Any]]

GATED = "transformers.models.qwen3_next.modeling_qwen3_next"
KDA = "transformers.models.kimi_linear.modeling_kimi_linear"
FUNCTIONS = {
    "delta": (GATED, "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    "gated_delta": (GATED, "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    "kda": (KDA, "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
}
"""For each rule the module, the function over a sequence, and that of one token; delta is gated delta without decay."""


@final
class Transformers(Implementation):
    """What Qwen3-Next and Kimi Linear run where no other kernels are installed."""

    operator = LinearAttentionCase
    name = "transformers"

    def prepare(self, case: LinearAttentionCase, x: AttentionInputs, threads: int) -> Prepared:
        require_installed("transformers", "pip install transformers")
        require(case.name in FUNCTIONS, "no model of it has this rule")
        module, over_sequence, one_token = FUNCTIONS[case.name]
        function = inspect.unwrap(getattr(quietly_imported(module), one_token if x.state else over_sequence))
        if x.state is not None:
            return prepare_token(partial(decode, function, x, x.state))
        return prepare_sequence(case, x, partial(attend, function))

    def growth(self, case: LinearAttentionCase) -> float:
        return 2.0 if case.mode == "train" else 1.0  # the gradient of every chunk has the size of all


def quietly_imported(module: str) -> Any:  # noqa: ANN401
    """A module of transformers, without its advice to install other kernels."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    return importlib.import_module(module)


def decay(x: AttentionInputs) -> Tensor:
    assert x.beta is not None
    return torch.zeros_like(x.beta) if x.log_decay is None else x.log_decay


def attend(function: Function, x: AttentionInputs) -> Tensor:
    return function(x.q, x.k, x.v, g=decay(x), beta=x.beta, initial_state=None, output_final_state=False)[0]


def decode(function: Function, x: AttentionInputs, state: State) -> tuple[Tensor, State]:
    out, memory = function(x.q, x.k, x.v, g=decay(x), beta=x.beta, initial_state=state.memory, output_final_state=True)
    return out, State(memory)
