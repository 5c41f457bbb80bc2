"""pytorch-fast-transformers: causal linear attention with a normalizer in C++, with a native backward pass."""
# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from rebracket.bench.case import Implementation, Prepared, require, require_installed
from rebracket.bench.cases.base import AttentionInputs, prepare_sequence, prepare_token
from rebracket.bench.cases.linear_attention import LinearAttentionCase
from rebracket.ops.state import State

GET = "pip install --no-build-isolation pytorch-fast-transformers (builds for minutes)"


@final
class FastTransformers(Implementation):
    """Its layers with an identity for a feature map, since q and k have one applied."""

    operator = LinearAttentionCase
    name = "fast-transformers"

    def prepare(self, case: LinearAttentionCase, x: AttentionInputs, threads: int) -> Prepared:
        require_installed("fast_transformers", GET)
        require(case.rule.normalizes, "linear with normalizer only")
        require(case.dtype == torch.float32, "float32 only")
        if x.state is not None:
            return prepare_token(partial(decode, recurrent(case), x, x.state))
        return prepare_sequence(case, x, causal(case))


def identity(x: Tensor) -> Tensor:
    return x


@final
class Triangle:
    """What its layer asks of a causal mask; its own mask is a T x T matrix."""

    lower_triangular = True


def causal(case: LinearAttentionCase) -> Any:  # noqa: ANN401
    from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
    from fast_transformers.feature_maps import ActivationFunctionFeatureMap
    from fast_transformers.masking import LengthMask

    layer = CausalLinearAttention(case.shape[3], ActivationFunctionFeatureMap.factory(identity))
    whole = LengthMask(torch.full((case.shape[0],), case.shape[1]), max_len=case.shape[1])
    return lambda x: layer(x.q, x.k, x.v, Triangle(), whole, whole)


def recurrent(case: LinearAttentionCase) -> Any:  # noqa: ANN401
    from fast_transformers.feature_maps import ActivationFunctionFeatureMap
    from fast_transformers.recurrent.attention.self_attention.linear_attention import RecurrentLinearAttention

    return RecurrentLinearAttention(case.shape[3], ActivationFunctionFeatureMap.factory(identity))


def decode(layer: Any, x: AttentionInputs, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
    q, k, v = (t.squeeze(1) for t in (x.q, x.k, x.v))
    out, (memory, key_sum) = layer(q, k, v, [state.memory, state.key_sum])
    return out, State(memory, key_sum)
