"""The training loop: a step, and steps until the end or until asked to stop."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from rebracket.data.batches import Batches
from rebracket.lm.checkpoints import refuse_other_weights
from rebracket.train.checkpoint import Checkpoint
from rebracket.train.config import TrainConfig
from rebracket.train.interrupt import Interrupt
from rebracket.train.loss import Precision, nats
from rebracket.train.optimizer import adamw, moments, restore_moments
from rebracket.train.progress import Pace, Report, Screen
from rebracket.train.schedule import learning_rate

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

    Example:
        >>> Update(step=1, loss=5.5, bits_per_byte=8.0, learning_rate=1e-3, gradient_norm=1.0).step
        1
    """

    step: int
    loss: float
    bits_per_byte: float
    learning_rate: float
    gradient_norm: float


@final
class Trainer:
    """A model that takes steps; all that a step depends on is in its `checkpoint`.

    w <- AdamW(w, clip(grad of the mean loss of `accumulate` rows))

    Args:
        model: `model(tokens [1,T], cu_seqlens=...)` gives an object with `logits` [1,T,vocab].
        batches: rows by number; step n takes rows n * accumulate and following.
        byte_lengths: [vocab] int64, bytes per id.
        config: the run.
        device: where the model is.

    Attributes:
        step: updates made.
        forward: what runs the model: itself, or its compiled form.

    Cost: a step is a forward and a backward pass over `accumulate` rows, and AdamW over the weights.

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

        Returns:
            Its numbers.

        Raises:
            FloatingPointError: the loss or the gradient is not finite; nothing has been saved of it.
        """
        rate = learning_rate(self.step, self._config.train.steps, self._config.optimizer)
        with diverged(self.step):
            loss, nbytes = self._accumulate()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._config.optimizer.clip).item()
        if not math.isfinite(loss + norm):
            raise FloatingPointError(
                f"step {self.step + 1}: loss {loss}, gradient norm {norm}; lower optimizer.learning_rate"
            )
        self._move(rate)
        tokens = self._config.train.batch_tokens * self._config.train.accumulate
        return Update(self.step, loss, loss * tokens / (math.log(2) * max(1, nbytes)), rate, norm)

    def checkpoint(self, corpus: str) -> Checkpoint:
        """All that the next step depends on but the text itself, whose digest is given."""
        weights = {WEIGHTS + name: tensor for name, tensor in self.model.state_dict().items()}
        means = {MOMENTS + name: tensor for name, tensor in moments(self.model, self._optimizer).items()}
        return Checkpoint(self.step, corpus, {**weights, **means, **random_states(self._device)})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes back to a checkpoint, bitwise.

        Raises:
            ValueError: its weights are not those of this model.
        """
        self._restore_weights(under(WEIGHTS, checkpoint.tensors))
        restore_moments(self.model, self._optimizer, under(MOMENTS, checkpoint.tensors))
        restore_random(under(RANDOM, checkpoint.tensors), self._device)
        self.step = checkpoint.step

    def _accumulate(self) -> tuple[float, int]:
        """Gradients of the mean loss of the rows of this step; gives that loss and the bytes they predict."""
        rows = self._config.train.accumulate
        total, nbytes = torch.zeros((), device=self._device), 0
        for number in range(self.step * rows, (self.step + 1) * rows):
            batch = self._batches[number]
            nbytes += int(self._byte_lengths[batch.targets].sum())
            loss = nats(self.forward, batch.to(self._device), self.precision).mean() / rows
            loss.backward()
            total += loss.detach()
        return total.item(), nbytes

    def _move(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1

    def _restore_weights(self, tensors: dict[str, Tensor]) -> None:
        refuse_other_weights(self.model, tensors, "the checkpoint holds the weights of another model")
        self.model.load_state_dict(tensors)


@final
@dataclass(frozen=True)
class Chores:
    """What happens between steps.

    Args:
        log: is told of every `log_every`-th update and the tokens per second.
        validate: is called every `validate_every` steps.
        save: is called every `checkpoint_every` steps, after the last, and after the one that was asked to be it.
    """

    log: Callable[[Update, float], None]
    validate: Callable[[], None]
    save: Callable[[], None]


def fit(trainer: Trainer, config: TrainConfig, chores: Chores, screen: Screen) -> bool:
    """Steps until the end, or until Ctrl-C.

    Args:
        trainer: stands at any step.
        config: how many steps, and what is done how often.
        chores: what is done.
        screen: shows it.

    Returns:
        Whether all steps are done; if not, the step Ctrl-C fell into is finished and saved.

    Raises:
        FloatingPointError: the loss or the gradient is not finite.
    """
    screen.begin(trainer.step, config.train.steps)
    pace = Pace(config.train.steps - trainer.step, config.train.batch_tokens * config.train.accumulate)
    try:
        with Interrupt() as interrupt:
            while trainer.step < config.train.steps and not interrupt.asked:
                update = timed(trainer.advance, pace)
                screen.show(Report(update.step, update.loss, pace.tokens_per_second, pace.seconds_left))
                attend(update, pace, config, chores)
            if trainer.step < config.train.steps:
                chores.save()
    finally:
        screen.end()
    return trainer.step >= config.train.steps


@contextmanager
def diverged(step: int) -> Iterator[None]:
    """Says why a model is refused after a step of its own: numbers that it once took have run away.

    Args:
        step: updates made; a model that made none may be refused for another reason.

    Raises:
        FloatingPointError: in place of a ValueError.
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


def timed(advance: Callable[[], Update], pace: Pace) -> Update:
    begun = time.perf_counter()
    update = advance()
    pace.note(time.perf_counter() - begun)
    return update


def attend(update: Update, pace: Pace, config: TrainConfig, chores: Chores) -> None:
    """What is due after a step; saved last, so that a checkpoint finds everything up to its step written down."""
    if due(update.step, config.train.log_every, config):
        chores.log(update, pace.tokens_per_second)
    if validation_due(update.step, config):
        chores.validate()
    if due(update.step, config.train.checkpoint_every, config):
        chores.save()


def due(step: int, every: int, config: TrainConfig) -> bool:
    return step % every == 0 or step == config.train.steps


def validation_due(step: int, config: TrainConfig) -> bool:
    """Not after the last step, when all held-out text is read anyway."""
    every = config.train.validate_every
    return every > 0 and step % every == 0 and step < config.train.steps


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def random_states(device: torch.device) -> dict[str, Tensor]:
    states = {RANDOM + "cpu": torch.get_rng_state()}
    return states | ({RANDOM + "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
