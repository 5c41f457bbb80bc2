"""One training step after another: gradients, update, checkpoint."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from rebracket.data.batches import Batches
from rebracket.lm.cache import below
from rebracket.lm.checkpoints import refuse_other_weights
from rebracket.train.checkpoint import Checkpoint
from rebracket.train.config import TrainConfig
from rebracket.train.optimizer import adamw, learning_rate, moments, restore_moments
from rebracket.train.validation import Precision, nats

WEIGHTS, MOMENTS, RANDOM = "model.", "optimizer.", "random."


@final
@dataclass(frozen=True)
class Update:
    """One step in numbers.

    Args:
        step: updates made, this one included.
        loss: nats per token before it, over the rows of the step.
        bits_per_byte: the same code length over the bytes of text predicted.
        learning_rate: used.
        gradient_norm: before clipping.
    """

    step: int
    loss: float
    bits_per_byte: float
    learning_rate: float
    gradient_norm: float


@final
class Trainer:
    """A model in training; everything that its next step depends on is in its `checkpoint`.

    w <- AdamW(w, clip(grad of the mean loss of `accumulate` rows))

    Args:
        model: `model(tokens [1,T], cu_seqlens=...)` returns an object with `logits` [1,T,vocab].
        batches: rows by number; step n takes rows n * accumulate and following.
        byte_lengths: [vocab] int64, bytes per id.
        config: the run.
        device: where the model is.

    Attributes:
        step: updates made.
        forward: what runs the model: itself, or its compiled form.

    Example:
        >>> import numpy as np
        >>> from rebracket.data import TokenStream
        >>> from rebracket.lm import Config, LanguageModel, Tokenizer
        >>> text = TokenStream(np.array([256, 104, 105] * 20, np.uint16), 256, 20, 40, "")
        >>> sizes = {"vocab_size": 257, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]}
        >>> model, lengths = LanguageModel(Config.from_dict(sizes)), Tokenizer.bytes().byte_lengths()
        >>> config = TrainConfig.from_dict({"model": {}, "train": {"steps": 2, "batch_tokens": 12}})
        >>> trainer = Trainer(model, Batches(text, 6, 12, seed=0), lengths, config, torch.device("cpu"))
        >>> trainer.advance().step
        1
    """

    def __init__(
        self, model: nn.Module, batches: Batches, byte_lengths: Tensor, config: TrainConfig, device: torch.device
    ) -> None:
        self.model = model
        self.forward = compiled(model) if config.train.compile else model
        self.step = 0
        self.precision = Precision(config.train.precision)
        self._batches = batches
        self._byte_lengths = byte_lengths
        self._config = config
        self._device = device
        self._optimizer = adamw(model, config.optimizer)

    def advance(self) -> Update:
        """Takes one step.

        Raises:
            FloatingPointError: the loss or the gradient is not finite; the weights have not moved.
        """
        config = self._config
        with diverged(self.step):
            loss, nbytes = self._accumulate()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.optimizer.clip).item()
        if not math.isfinite(loss + norm):
            raise FloatingPointError(
                f"step {self.step + 1}: loss {loss}, gradient norm {norm}; lower optimizer.learning_rate"
            )
        rate = learning_rate(self.step, config.train.steps, config.optimizer)
        self._update_weights(rate)
        tokens = config.train.batch_tokens * config.train.accumulate
        return Update(self.step, loss, loss * tokens / (math.log(2) * max(1, nbytes)), rate, norm)

    def _accumulate(self) -> tuple[float, int]:
        """Adds up gradients of the mean loss of this step's rows; returns that loss and the bytes they predict."""
        rows = self._config.train.accumulate
        total, nbytes = torch.zeros((), device=self._device), 0
        for number in range(self.step * rows, (self.step + 1) * rows):
            batch = self._batches[number]
            nbytes += int(self._byte_lengths[batch.targets].sum())
            loss = nats(self.forward, batch.to(self._device), self.precision).mean() / rows
            loss.backward()
            total += loss.detach()
        return total.item(), nbytes

    def _update_weights(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1

    def checkpoint(self, corpus: str) -> Checkpoint:
        """Everything that the next step depends on; of the text only its digest."""
        tensors = {
            WEIGHTS: self.model.state_dict(),
            MOMENTS: moments(self.model, self._optimizer),
            RANDOM: random_states(self._device),
        }
        named = {prefix + name: tensor for prefix, group in tensors.items() for name, tensor in group.items()}
        return Checkpoint(self.step, corpus, named)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes back to a checkpoint, bitwise.

        Raises:
            ValueError: its weights are not those of this model.
        """
        weights, optimizer, states = (below(checkpoint.tensors, prefix) for prefix in (WEIGHTS, MOMENTS, RANDOM))
        refuse_other_weights(self.model, weights, "the checkpoint holds the weights of another model")
        self.model.load_state_dict(weights)
        restore_moments(self.model, self._optimizer, optimizer)
        torch.set_rng_state(states["cpu"])
        if self._device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self._device)
        self.step = checkpoint.step


@contextmanager
def diverged(step: int) -> Iterator[None]:
    """Turns a ValueError of the model into a FloatingPointError: after a step, its own numbers are to blame.

    Args:
        step: updates made; before the first the error stays as it is.
    """
    try:
        yield
    except ValueError as error:
        if step == 0:
            raise
        raise FloatingPointError(f"step {step + 1}: {error}; lower optimizer.learning_rate") from error


def compiled(model: nn.Module) -> nn.Module:
    module = torch.compile(model)
    assert isinstance(module, nn.Module)
    return module


def random_states(device: torch.device) -> dict[str, Tensor]:
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}
