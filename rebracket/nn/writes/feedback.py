"""Delta writes that subtract only a part of what the key recalls."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from rebracket.nn.projections import GateProjection
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.precision import at_least_float32
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.read_key import ReadKey

LARGEST = 80.0
"""The most that the exponent of a read key grows to, so that float32 can hold it."""


@final
class FeedbackWrite(Write):
    """The delta rule with a learned part of its feedback, read from the state before the decay.

    S_t = a_t S_{t-1} + beta_t k_t (v_t - b S_{t-1}^T k_t)^T,   beta = sigmoid(W x),   b = sigmoid(feedback)

    The operator reads after the decay, so the read key is b k / a; a decay below e^-80 reads as e^-80 would.

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_heads: heads of k, Hq; each has a feedback of its own.

    Cost: d_model H multiply-adds a token. Source: Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop
    Control".

    Example:
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> FeedbackWrite(8, 2, 2)(x, k, v, None).rule.key[0, 0, 0]
        tensor([0.7311, 0.7311, 0.7311], grad_fn=<SelectBackward0>)
    """

    def __init__(self, d_model: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.beta = GateProjection(d_model, heads)
        self.feedback = nn.Parameter(torch.ones(key_heads))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        wide = at_least_float32(k)
        key = self.feedback.to(wide).sigmoid()[:, None] * wide
        if log_decay is not None:
            rise = (-log_decay).clamp(max=LARGEST).exp().to(key)
            rise = rise if rise.ndim == key.ndim else rise.unsqueeze(-1)
            key = key.repeat_interleave(v.shape[-2] // k.shape[-2], -2) * rise
        return Written(k, v, ReadKey(key, self.beta(x).sigmoid()))

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        k, heads = given.k, given.key_heads
        if log_decay is not None:
            k, heads = build.repeat(k, heads, given.heads // heads), given.heads
        part = self.feedback.sigmoid().repeat_interleave(k.width // len(self.feedback))
        r = build.pair("multiply", k, part)
        if isinstance(log_decay, Value):
            fall = build.pair("minimum", build.apply("negative", log_decay), torch.full((log_decay.width,), LARGEST))
            r = build.pair("multiply", r, build.apply("exp", fall))
        elif log_decay is not None:
            rise = (-log_decay).clamp(max=LARGEST).exp()
            r = build.pair("multiply", r, rise.repeat_interleave(k.width // len(rise)))
        beta = build.apply("sigmoid", self.beta.lower(build, x))
        return replace(given, k=k, key_heads=heads, r=r, beta=beta)

    def reset_parameters(self) -> None:
        """Draws W again; feedback = 1, which is b = 0.73."""
        self.beta.reset_parameters()
        nn.init.ones_(self.feedback)
