"""Additive writes of values times the step of the decay."""

from dataclasses import replace
from typing import final

from torch import Tensor

from rebracket.nn.decays.base import StepDecay
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.additive import Additive


@final
class StepWrite(Write):
    """Adds values times the step that also made the decay; it has no weights of its own.

    S_t = exp(-A Delta_t) S_{t-1} + k_t (Delta_t v_t)^T

    Args:
        decay: the layer's decay.

    Cost: V multiplications a head. Source: Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).

    Example:
        >>> import torch
        >>> from rebracket.nn import decays, MixerSize
        >>> decay = decays.make("mamba2", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5))
        >>> x, k, v = torch.zeros(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> written = StepWrite(decay)(x, k, v, decay(x))
        >>> bool(torch.allclose(written.v[0, 0, :, 0], torch.nn.functional.softplus(decay.dt_bias)))
        True
    """

    def __init__(self, decay: StepDecay) -> None:
        super().__init__()
        # In a tuple, which torch does not search: the weights are the layer's, under `decay`, and stand there once.
        self.shared = (decay,)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        if log_decay is None:
            raise ValueError("log_decay must be that of the shared decay, got None: give the layer the same decay")
        (decay,) = self.shared
        return Written(k, (v * decay.steps(log_decay).unsqueeze(-1)).to(v.dtype), Additive())

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        assert isinstance(log_decay, Value)
        (decay,) = self.shared
        return replace(given, v=build.pair("multiply", given.v, decay.lower_steps(build, log_decay)))

    def reset_parameters(self) -> None:
        """Nothing to draw; the layer draws its decay again."""
