"""AdamW over the weights of a model, its learning rate over a run, and its state as named tensors."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rebracket.nn.parameters import weight_decay_groups
from rebracket.train.config import OptimizerConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay, vectors and scalars (norms, biases, rates) do not.

    Source: Loshchilov and Hutter 2019.

    Example:
        >>> groups = adamw(nn.Linear(2, 3), OptimizerConfig()).param_groups
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
    """
    groups: list[dict[str, Any]] = [{**group} for group in weight_decay_groups(model, config.weight_decay)]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of one step of `steps`: a linear rise to the peak, then a cosine down to its floor.

        peak * (step + 1) / warmup                                            while step < warmup
        peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)           after, progress from 0 to 1

    Source: Loshchilov and Hutter 2017 (one period of SGDR).

    Example:
        >>> config = OptimizerConfig(learning_rate=1.0, warmup=2, floor=0.1)
        >>> [round(learning_rate(step, 5, config), 3) for step in range(5)]
        [0.5, 1.0, 0.775, 0.325, 0.1]
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup + 1) / max(1, steps - config.warmup)
    return config.learning_rate * (config.floor + (1 - config.floor) * (1 + math.cos(math.pi * progress)) / 2)


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors, named after the parameters they belong to; none before the first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Gives the optimizer copies of the tensors that `moments` returned."""
    for name, parameter in model.named_parameters():
        if f"step.{name}" in tensors:
            optimizer.state[parameter] = {
                moment: tensors[f"{moment}.{name}"].to(parameter.device, copy=True) for moment in MOMENTS
            }
