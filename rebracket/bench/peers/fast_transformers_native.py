"""pytorch-fast-transformers: causal linear attention with a normalizer in C++, with a native backward pass."""
# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from rebracket.bench.cases import Case, Inputs
from rebracket.bench.entrant import Attempt, Entrant, require, require_installed
from rebracket.bench.torch_call import attempt, decoding
from rebracket.ops.state import State

GET = "pip install --no-build-isolation pytorch-fast-transformers (builds for minutes)"


@final
class FastTransformers(Entrant):
    """Its layers with an identity for a feature map, since q and k have one applied."""

    name = "fast-transformers"

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        require_installed("fast_transformers", GET)
        require(case.rule.normalizes, "linear with normalizer only")
        require(case.dtype == torch.float32, "float32 only")
        if x.state is not None:
            return decoding(partial(decode, recurrent(case), x, x.state))
        return attempt(case, x, causal(case))


def identity(x: Tensor) -> Tensor:
    return x


@final
class Triangle:
    """What its layer asks of a causal mask; its own mask is a T x T matrix."""

    lower_triangular = True


def causal(case: Case) -> Any:  # noqa: ANN401
    from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
    from fast_transformers.feature_maps import ActivationFunctionFeatureMap
    from fast_transformers.masking import LengthMask

    layer = CausalLinearAttention(case.shape.D, ActivationFunctionFeatureMap.factory(identity))
    whole = LengthMask(torch.full((case.shape.B,), case.shape.T), max_len=case.shape.T)
    return lambda x: layer(x.q, x.k, x.v, Triangle(), whole, whole)


def recurrent(case: Case) -> Any:  # noqa: ANN401
    from fast_transformers.feature_maps import ActivationFunctionFeatureMap
    from fast_transformers.recurrent.attention.self_attention.linear_attention import RecurrentLinearAttention

    return RecurrentLinearAttention(case.shape.D, ActivationFunctionFeatureMap.factory(identity))


def decode(layer: Any, x: Inputs, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
    q, k, v = (t.squeeze(1) for t in (x.q, x.k, x.v))
    out, (memory, key_sum) = layer(q, k, v, [state.memory, state.key_sum])
    return out, State(memory, key_sum)


PEER = FastTransformers()
