"""Trains small models on synthetic tasks and counts their right answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.lab.base.experiment import Result
from rebracket.lm.config import Config
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
    """

    tokens: Tensor
    labels: Tensor


def model_without_mlps(
    layers: Sequence[Mapping[str, object]], *, vocabulary: int, d_model: int, context: int, seed: int
) -> LanguageModel:
    """A language model whose layers mix tokens and do nothing else."""
    sizes = {"vocab_size": vocabulary, "d_model": d_model, "mlp_dim": 0, "context": context}
    return LanguageModel(Config.from_dict({**sizes, "layers": list(layers)}), seed=seed)


def learn(
    model: LanguageModel,
    examples: Callable[[int], Examples],
    steps: int,
    config: OptimizerConfig,
    done: Callable[[int], bool] = lambda step: False,
) -> list[float]:
    """Trains a model with AdamW, in place; logits are computed only where something is asked.

    Args:
        model: the model.
        examples: the batch of each step, by its number from 0.
        steps: how many at most.
        config: learning rate and its schedule, weight decay, clipping.
        done: asked after each step, by its number, whether to stop early.

    Returns:
        The mean loss of each step that was taken, in nats.

    Example:
        >>> layers = [{"mixer": "gla", "heads": 1}]
        >>> model = model_without_mlps(layers, vocabulary=3, d_model=32, context=2, seed=0)
        >>> batch = Examples(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]))
        >>> losses = learn(model, lambda step: batch, 80, OptimizerConfig(learning_rate=0.003, warmup=5))
        >>> losses[-1] < losses[0], label_accuracy(model, batch)
        (True, 1.0)
    """
    optimizer, losses = adamw(model, config), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, config)
        loss = F.cross_entropy(*logits_and_labels(model, examples(step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        losses.append(loss.item())
        if done(step):
            break
    return losses


@torch.no_grad()
def label_accuracy(model: LanguageModel, examples: Examples) -> float:
    """The fraction of the labels to which a model gives the largest logit."""
    logits, labels = logits_and_labels(model, examples)
    return float((logits.argmax(-1) == labels).double().mean())


def logits_and_labels(model: LanguageModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Logits [m,vocab] where something is asked, and the right answers [m]."""
    x, _ = model.read(examples.tokens)
    asked = examples.labels != UNLABELLED
    return model.logits(x[asked]), examples.labels[asked]


def at_best_rates(results: Sequence[Result]) -> list[Result]:
    """Of the results whose cells differ in their rate alone, the one with the least number `chosen by`.

    That number is measured on other examples than those that the result is about, so that the choice flatters none.

    Example:
        >>> found = [Result({"mixer": "gla", "rate": rate}, {"chosen by": 9 * rate}, 0.1) for rate in (0.1, 0.2)]
        >>> at_best_rates(found) == found[:1]
        True
    """
    groups: dict[tuple[tuple[str, object], ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple((k, x) for k, x in result.cell.items() if k != "rate"), []).append(result)
    return [min(group, key=lambda r: r["chosen by"]) for group in groups.values()]
