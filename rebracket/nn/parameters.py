"""Which parameters an optimizer may shrink."""

from typing import Any

from torch import nn


def weight_decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters in two groups: matrices, which decay, and everything with one axis or none, which does not.

    Rates and biases of decays (A_log, dt_bias), weights of norms and biases have one axis: shrinking them towards 0
    would pull every gate to the same memory span.

    Args:
        module: the model or layer.
        weight_decay: the factor for the first group, >= 0.

    Returns:
        Two groups for an optimizer of torch; a parameter that is used twice is in one of them once.

    Cost: one pass over the names. Source: Mamba-2 and Gated DeltaNet exempt A_log and dt_bias; GPT-2 norms and biases.

    Example:
        >>> from torch import nn
        >>> groups = weight_decay_groups(nn.Linear(3, 2), 0.1)
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
    """
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
