"""The gate of Mamba-2."""

from typing import final

from rebracket.nn.decays.base import StepDecay


@final
class Mamba2Decay(StepDecay):
    """A decay per token and head: a rate for each head, times a step that the token sets.

    log_decay = -exp(A_log) Delta,   Delta = softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.

    Returns:
        log_decay [B,T,H]; `StepWrite` multiplies the values by the same Delta.

    At first exp(A_log) is uniform in [1, 16] and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: d_model H multiply-adds a token. Source: Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).

    Example:
        >>> import torch
        >>> bool((Mamba2Decay(8, 2)(torch.ones(1, 6, 8)) < 0).all())
        True
    """

    @property
    def least_rate(self) -> float:
        return 1.0
