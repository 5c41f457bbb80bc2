"""AdamW over the weights of a model, and its state as named tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rebracket.nn.parameters import weight_decay_groups
from rebracket.train.config import OptimizerConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay, vectors and scalars (norms, biases, rates) do not.

    Args:
        model: whose parameters are updated.
        config: the numbers.

    Returns:
        The optimizer; one fused pass over the weights per step, on CPU and CUDA.

    Source: Loshchilov and Hutter 2019.

    Example:
        >>> groups = adamw(nn.Linear(2, 3), OptimizerConfig()).param_groups
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
    """
    groups: list[dict[str, Any]] = [{**group} for group in weight_decay_groups(model, config.weight_decay)]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors, named after the parameters they belong to; none before the first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts what `moments` gave back in its place."""
    for name, parameter in model.named_parameters():
        if f"step.{name}" in tensors:
            optimizer.state[parameter] = {
                moment: tensors[f"{moment}.{name}"].to(parameter.device, copy=True) for moment in MOMENTS
            }
