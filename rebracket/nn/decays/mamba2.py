"""The gate of Mamba-2, whose step is also the strength of its writes."""

from typing import final

from torch import Tensor

from rebracket.nn.decays import Decay
from rebracket.nn.mixer import MixerSize
from rebracket.nn.rates import StepDecay


@final
class Mamba2Decay(StepDecay):
    """A decay per token and head, and values weighted by the step that made it.

    log_decay = -exp(A_log) Delta,   v' = Delta v,   Delta = softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.

    Returns:
        log_decay [B,T,H].

    At first exp(A_log) is uniform in [1, 16] and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: d_model H multiply-adds a token. Source: Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).

    Example:
        >>> import torch
        >>> decay = Mamba2Decay(8, 2)
        >>> log_decay = decay(torch.zeros(1, 6, 8))
        >>> bool(torch.allclose(decay.strength(log_decay), torch.nn.functional.softplus(decay.dt_bias)))
        True
    """

    @property
    def least_rate(self) -> float:
        return 1.0

    def strength(self, log_decay: Tensor) -> Tensor:
        """Delta [...,H]."""
        return -log_decay * (-self.A_log.to(log_decay)).exp()


def build(size: MixerSize) -> Decay:
    """The gate for `size.heads` heads."""
    return Mamba2Decay(size.d_model, size.heads)
