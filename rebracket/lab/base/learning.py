"""Training small models on made-up tasks: what the experiments that learn something share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.lm.model import LanguageModel
from rebracket.train.config import OptimizerConfig
from rebracket.train.optimizer import adamw, learning_rate

UNLABELLED = -100
"""The label of a token after which nothing is asked."""


@final
@dataclass(frozen=True)
class Examples:
    """Sequences and what is asked after each of their tokens.

    Args:
        tokens: [B,T] int64.
        labels: the right answers [B,T] int64, `UNLABELLED` where nothing is asked.

    Example:
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> Examples(tokens, tokens.where(tokens == 3, UNLABELLED)).labels
        tensor([[-100, -100,    3]])
    """

    tokens: Tensor
    labels: Tensor


def learn(
    model: LanguageModel,
    examples: Callable[[int], Examples],
    steps: int,
    config: OptimizerConfig,
    done: Callable[[int], bool] = lambda step: False,
) -> list[float]:
    """Trains a model by AdamW, in place.

    Args:
        model: the model.
        examples: what each step is trained on, by its number from 0.
        steps: how many.
        config: rate, warm-up and floor of its course, weight decay, clipping.
        done: asked after each step, by its number, whether the model has learned enough.

    Returns:
        The mean loss of each step that was taken, in nats.

    Cost: forward and backward pass of every example; logits only where something is asked.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gla", "heads": 1}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 3, "d_model": 8, "context": 2, "layers": layers}))
        >>> turn = Examples(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]))
        >>> losses = learn(model, lambda step: turn, 20, OptimizerConfig(learning_rate=0.01, warmup=5))
        >>> losses[-1] < losses[0]
        True
    """
    optimizer, losses = adamw(model, config), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, config)
        logits, answers = answered(model, examples(step))
        loss = F.cross_entropy(logits, answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        losses.append(loss.item())
        if done(step):
            break
    return losses


@torch.no_grad()
def recalled(model: LanguageModel, examples: Examples) -> float:
    """The fraction of the labels to which a model gives the largest logit.

    Args:
        model: the model.
        examples: what it is asked.

    Returns:
        A fraction in [0, 1].

    Cost: a forward pass; logits only where something is asked.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gla", "heads": 1}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 1, "d_model": 8, "context": 2, "layers": layers}))
        >>> recalled(model, Examples(torch.tensor([[0, 0]]), torch.tensor([[UNLABELLED, 0]])))
        1.0
    """
    logits, answers = answered(model, examples)
    return float((logits.argmax(-1) == answers).double().mean())


def answered(model: LanguageModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Logits [m,vocab] where something is asked, and the answers [m]."""
    x, _ = model.read(examples.tokens)
    asked = examples.labels != UNLABELLED
    return model.logits(x[asked]), examples.labels[asked]
