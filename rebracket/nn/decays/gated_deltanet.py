"""The scalar gate of Mamba-2 as Gated DeltaNet draws it."""

from typing import final

from rebracket.nn.decays.base import StepDecay


@final
class GatedDeltaNetDecay(StepDecay):
    """A decay per token and head: a rate of its own for each head, times a step that the token sets.

    log_decay = -exp(A_log) softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.

    Returns:
        log_decay [B,T,H].

    At first exp(A_log) is uniform in (0, 16) and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: d_model H multiply-adds a token. Source: Dao and Gu 2024 (Mamba-2); Yang et al. 2024, "Gated Delta Networks".

    Example:
        >>> import torch
        >>> bool((GatedDeltaNetDecay(8, 2)(torch.ones(1, 6, 8)) < 0).all())
        True
    """

    @property
    def least_rate(self) -> float:
        return 0.0
