"""The course of the learning rate."""

import math

from rebracket.train.config import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of one step: a linear rise to the peak, then a cosine down to its floor.

        peak * (step + 1) / warmup                                            while step < warmup
        peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)           after, progress from 0 to 1

    Args:
        step: 0 to steps - 1.
        steps: of the whole run.
        config: peak, warm-up and floor.

    Returns:
        The rate; the last step has the floor's.

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
