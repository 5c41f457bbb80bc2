"""A whole run: its text, its model, its steps, and what they leave in its folder."""

import importlib.util
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from rebracket.base.progress import Progress
from rebracket.data.batches import Batches, ordered, whole_contexts
from rebracket.data.compression import xz
from rebracket.data.corpus import Corpus, load_corpus
from rebracket.lm.checkpoints import save_model
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.lm.tokenizer import SMALLEST
from rebracket.train import checkpoint
from rebracket.train.config import DataConfig, TrainConfig
from rebracket.train.curve import draw
from rebracket.train.folder import RunFolder
from rebracket.train.interrupt import Interrupt
from rebracket.train.metrics import Metrics, records
from rebracket.train.trainer import Trainer, Update, diverged
from rebracket.train.validation import BitsPerByte, validate

RECENT = 50
"""Steps over which the speed is averaged."""


@final
@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended.

    Args:
        step: updates made so far.
        result: the last line of the metrics of a finished run; None if it was stopped before its end.
        before: whether the run was finished before the call.
    """

    step: int
    result: Mapping[str, Any] | None
    before: bool = False


def train(config: TrainConfig, out: Path, cache: Path, progress: Progress) -> Outcome:
    r"""Trains a language model, resuming where its folder says that it stopped.

    Everything is checked before anything is written. After any death of the process another call resumes to bitwise the
    same losses (on the same machine, with the same number of threads; up to rounding with `train.compile`, whose
    kernels depend on the shapes a process has met). Ctrl-C finishes the step, saves it and stops.

    Args:
        config: the run.
        out: its folder; `rebracket.train.folder.RunFolder` says what is in it.
        cache: folder for tokens and tokenizers.
        progress: shows it.

    Raises:
        FileNotFoundError: text that is not there.
        ValueError: a config or text that cannot be trained, or a folder that holds something else.
        FloatingPointError: the loss is not finite.

    Example:
        >>> import sys, tempfile
        >>> sizes = {"d_model": 8, "context": 16, "depth": 1, "pattern": ["gla"], "mixers": {"gla": {"heads": 2}}}
        >>> with tempfile.TemporaryDirectory() as home:
        ...     _ = Path(home, "novel.txt").write_text("one line of it\n" * 50)
        ...     data = {"text": [home + "/novel.txt"], "tokenizer": "bytes", "held_out": 0.1}
        ...     loop = {"steps": 2, "batch_tokens": 32, "validate_every": 0}
        ...     config = TrainConfig.from_dict({"model": sizes, "data": data, "train": loop})
        ...     train(config, Path(home, "run"), Path(home, "cache"), Progress(sys.stdout, "step")).step
        training on ...
        2
    """
    folder = RunFolder(out)
    folder.refuse_other(config)
    result = folder.result()
    if result is not None:
        outcome = Outcome(result["step"], result, before=True)
    else:
        refuse_unsound(config)
        folder.refuse_unusable()
        session = Session(config, folder, corpus_of(config.data, cache, progress), progress)
        with folder.held(config):
            outcome = session.run()
    if outcome.result is not None and not folder.curve.exists():
        draw(records(folder.metrics), folder.curve)
    return outcome


@final
class Session:
    """One run in one process: builds the model, takes the steps, writes the folder.

    Args:
        config: the run.
        folder: what it writes, which is not touched before `run`.
        corpus: its text.
        progress: shows it.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, corpus: Corpus, progress: Progress) -> None:
        sizes = model_config(config.model, corpus.tokenizer.vocab_size)
        batches = Batches(corpus.train, sizes.context, config.train.batch_tokens, config.train.seed)
        self._device = device_of(config.train.device)
        self._model = LanguageModel(sizes, seed=config.train.seed).to(self._device)
        self._byte_lengths = corpus.tokenizer.byte_lengths()
        self._trainer = Trainer(self._model, batches, self._byte_lengths, config, self._device)
        self._config = config
        self._loop = config.train
        self._folder = folder
        self._corpus = corpus
        self._progress = progress
        progress.say(describe(corpus, self._model, self._device))

    def run(self) -> Outcome:
        """Resumes, takes the steps that are left, saves the model and, after the last step, the result."""
        self._resume()
        events = self._folder.path / "tensorboard" if self._loop.tensorboard else None
        with Metrics(self._folder.metrics, self._trainer.step, events) as metrics:
            self._record_start(metrics)
            self._take_steps(metrics)
            save_model(self._folder.model, self._model, self._corpus.tokenizer)
            finished = self._trainer.step >= self._loop.steps
            return Outcome(self._trainer.step, self._finish(metrics) if finished else None)

    def _resume(self) -> None:
        found = checkpoint.newest(self._folder.checkpoints, self._progress.say)
        if found is None:
            return
        if found.corpus != self._corpus.digest:
            raise ValueError(f"{self._folder.path} was started with another text than data.text gives now")
        self._trainer.restore(found)
        self._progress.say(f"resuming: going on from step {found.step:,} of {self._loop.steps:,}")

    def _record_start(self, metrics: Metrics) -> None:
        threads = torch.get_num_threads()
        before = [record.get("threads") for record in records(self._folder.metrics) if record["kind"] == "start"]
        if before and before[-1] != threads:
            self._progress.say(
                f"started with {before[-1]} threads, now {threads}: losses may differ in their last digits"
            )
        metrics.add("start", self._trainer.step, {"threads": threads, "torch": torch.__version__})

    def _take_steps(self, metrics: Metrics) -> None:
        """Steps until the last one, or until Ctrl-C: then the current step is finished and saved."""
        steps, tokens = self._loop.steps, self._loop.batch_tokens * self._loop.accumulate
        seconds: deque[float] = deque(maxlen=RECENT)
        with self._progress.counting(self._trainer.step) as show, Interrupt() as interrupt:
            while self._trainer.step < steps and not interrupt.asked:
                begun = time.perf_counter()
                update = self._trainer.advance()
                seconds.append(time.perf_counter() - begun)
                speed = tokens * len(seconds) / sum(seconds)
                show(update.step, steps, f"loss {update.loss:.3f}, {speed:,.0f} tokens/s")
                self._after_step(update, speed, metrics)
            if self._trainer.step < steps:
                self._save()

    def _after_step(self, update: Update, tokens_per_second: float, metrics: Metrics) -> None:
        """Logs, validates and checkpoints; saves last, so that metrics are on disk before the checkpoint."""
        step, loop = update.step, self._loop
        last = step == loop.steps
        if last or step % loop.log_every == 0:
            metrics.add("train", step, {**asdict(update), "tokens_per_second": tokens_per_second})
        if loop.validate_every and step % loop.validate_every == 0 and not last:  # the result reads all held-out text
            found = self._validate(loop.validate_tokens)
            metrics.add("validation", step, found.to_dict())
            self._progress.say(f"step {step:,}: {found.value:.4f} bits per byte of {found.nbytes:,} held-out bytes")
        if last or step % loop.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        checkpoint.write(self._folder.checkpoints, self._trainer.checkpoint(self._corpus.digest), self._loop.keep)

    def _validate(self, limit: int) -> BitsPerByte:
        rows = ordered(self._corpus.held_out, self._model.config.context, self._loop.batch_tokens, limit)
        with diverged(self._trainer.step):
            found = validate(self._trainer.forward, rows, self._byte_lengths, self._device, self._trainer.precision)
            if found.nbytes and not math.isfinite(found.value):
                raise ValueError(f"held-out text has {found.value} bits per byte")
            return found

    def _finish(self, metrics: Metrics) -> dict[str, Any]:
        """Measures on all held-out text; its line of metrics is the last, and says that the run is finished."""
        self._progress.say("reading all held-out text, with the model and with xz")
        found = self._validate(limit=0)
        compressed = xz(self._corpus, self._loop.xz_bytes)
        result = {
            **found.to_dict(),
            "documents": self._corpus.held_out.documents,
            "xz_alone": compressed.alone,
            "xz_after": compressed.after,
            "xz_before_nbytes": compressed.before_nbytes,
        }
        metrics.add("result", self._trainer.step, result)
        return {"kind": "result", "step": self._trainer.step, **result}


def refuse_unsound(config: TrainConfig) -> None:
    """Raises a ValueError for what can be seen of a config without its text, which may take long to read."""
    if config.train.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("train.tensorboard needs the package tensorboard: pip install tensorboard")
    device_of(config.train.device)
    # Whether the other sizes fit does not depend on the size of the vocabulary.
    whole_contexts(config.train.batch_tokens, model_config(config.model, SMALLEST).context)


def corpus_of(data: DataConfig, cache: Path, progress: Progress) -> Corpus:
    """The text that a config names."""
    options = {name: value for name, value in vars(data).items() if name != "text"}
    return load_corpus(data.text, **options, cache=cache, say=progress.say, note=progress.say)


def model_config(values: Mapping[str, Any], vocab_size: int) -> Config:
    """The model that a table describes, with the vocabulary that the tokenizer gives.

    Raises:
        ValueError: the table does not describe a model, or has a vocabulary of its own.

    Example:
        >>> table = {"d_model": 16, "context": 8, "depth": 2, "pattern": ["gla"], "mixers": {"gla": {"heads": 2}}}
        >>> model_config(table, 257).vocab_size
        257
    """
    if "vocab_size" in values:
        raise ValueError("model.vocab_size is given by the tokenizer; set data.vocab_size")
    return Config.from_dict({**values, "vocab_size": vocab_size})


def device_of(name: str) -> torch.device:
    """The device of that name; for "auto" the first CUDA device, or the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.ones(1, device=name)
        (probe + probe).item()  # some devices can be named, and hold nothing
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        raise ValueError(f"train.device {name!r} is not available here: {str(error).splitlines()[0]}") from error
    return probe.device


def describe(corpus: Corpus, model: LanguageModel, device: torch.device) -> str:
    """The text, the model and the device, in lines."""
    train, held = corpus.train, corpus.held_out
    text = f"training on {train.nbytes:,} bytes of {train.documents:,} documents, {len(train):,} tokens"
    kept = f"held out: {held.nbytes:,} bytes of {held.documents:,} documents, {len(held):,} tokens"
    where = f"on {device}" + (f", {torch.get_num_threads()} threads" if device.type == "cpu" else "")
    return "\n".join([text, kept, *model.summary(), where])


def verdict(result: Mapping[str, Any]) -> str:
    """The result of a finished run in lines: the model's bits per byte beside those of xz on the same text.

    Args:
        result: of an `Outcome`.

    Example:
        >>> bits = {"bits_per_byte": 2.5, "xz_alone": 3.0, "xz_after": 2.75}
        >>> print(verdict({**bits, "nbytes": 1000, "documents": 2, "xz_before_nbytes": 5000}))
        held-out text, 1,000 bytes of 2 documents, in bits per byte:
          2.5000  this model
          3.0000  xz -9e of this text alone
          2.7500  xz -9e given 5,000 bytes of training text before it
    """
    return "\n".join(
        [
            f"held-out text, {result['nbytes']:,} bytes of {result['documents']:,} documents, in bits per byte:",
            f"  {result['bits_per_byte']:.4f}  this model",
            f"  {result['xz_alone']:.4f}  xz -9e of this text alone",
            f"  {result['xz_after']:.4f}  xz -9e given {result['xz_before_nbytes']:,} bytes of training text before it",
        ]
    )
