"""A whole run: text, model, steps, and what is left of it in its folder."""

import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from rebracket.data.batches import Batches, ordered, whole_contexts
from rebracket.data.corpus import Corpus, load_corpus
from rebracket.lm.checkpoints import save_model
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.lm.tokenizer import SMALLEST
from rebracket.train import checkpoint
from rebracket.train.compressors import xz
from rebracket.train.config import DataConfig, LoopConfig, TrainConfig
from rebracket.train.curve import Curve, draw
from rebracket.train.folder import RunFolder
from rebracket.train.loop import Chores, Trainer, Update, diverged, fit
from rebracket.train.metrics import Metrics, records
from rebracket.train.progress import Screen
from rebracket.train.validation import BitsPerByte, validate


@final
@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended.

    Args:
        step: updates made so far.
        result: the last line of the metrics of a finished run; None if it was stopped before its end.
        before: whether the run was finished before the call.

    Example:
        >>> Outcome(step=7, result=None).before
        False
    """

    step: int
    result: Mapping[str, Any] | None
    before: bool = False


def train(config: TrainConfig, out: Path, cache: Path, screen: Screen) -> Outcome:
    r"""Trains a language model, from where its folder says it stands.

    Everything is checked before anything is written. Called again after any death of the process, it goes on to
    bitwise the same losses (on the same machine, with the same number of threads; to rounding with `train.compile`,
    whose kernels depend on the shapes a process has met).

    Args:
        config: the run.
        out: its folder; `rebracket.train.folder.RunFolder` says what is in it.
        cache: folder for tokens and tokenizers.
        screen: shows it.

    Returns:
        The outcome; a run stopped by Ctrl-C has saved its step.

    Raises:
        FileNotFoundError: text that is not there.
        ValueError: a config or text that cannot be trained, or a folder that holds something else.
        FloatingPointError: the loss is not finite.

    Cost: memory of the text, of the model with three more numbers per weight, and of one row's activations.

    Example:
        >>> import tempfile
        >>> from rebracket.train import Lines
        >>> sizes = {"d_model": 8, "context": 16, "depth": 1, "pattern": ["gla"], "mixers": {"gla": {"heads": 2}}}
        >>> with tempfile.TemporaryDirectory() as home:
        ...     _ = Path(home, "novel.txt").write_text("one line of it\n" * 50)
        ...     data = {"text": [home + "/novel.txt"], "tokenizer": "bytes", "held_out": 0.1}
        ...     loop = {"steps": 2, "batch_tokens": 32, "validate_every": 0}
        ...     config = TrainConfig.from_dict({"model": sizes, "data": data, "train": loop})
        ...     train(config, Path(home, "run"), Path(home, "cache"), Lines()).step
        training on ...
        2
    """
    folder = RunFolder(out)
    folder.refuse_other(config)
    result = folder.result()
    if result is not None:
        return Outcome(result["step"], result, before=True)
    refuse_unsound(config)
    folder.refuse_unusable()
    session = Session.of(config, folder, corpus_of(config.data, cache, screen), screen)
    with folder.held(config):
        return session.run()


@final
class Session:
    """One run with everything at hand.

    Args:
        config: the run.
        folder: where it lies.
        corpus: its text.
        model: what it trains.
        trainer: takes its steps.
        screen: shows it.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        corpus: Corpus,
        model: LanguageModel,
        trainer: Trainer,
        screen: Screen,
    ) -> None:
        self._config = config
        self._folder = folder
        self._corpus = corpus
        self._model = model
        self._trainer = trainer
        self._screen = screen

    @classmethod
    def of(cls, config: TrainConfig, folder: RunFolder, corpus: Corpus, screen: Screen) -> "Session":
        """The session of a config, its model at the first step; writes nothing."""
        sizes = model_config(config.model, corpus.tokenizer.vocab_size)
        batches = Batches(corpus.train, sizes.context, config.train.batch_tokens, config.train.seed)
        device = device_of(config.train.device)
        model = LanguageModel(sizes, seed=config.train.seed).to(device)
        trainer = Trainer(model, batches, corpus.tokenizer.byte_lengths(), config, device)
        screen.say(describe(corpus, model, device))
        return cls(config, folder, corpus, model, trainer, screen)

    def run(self) -> Outcome:
        """Takes the steps that are left and, if that is all of them, finishes."""
        self._resume()
        events = self._folder.path / "tensorboard" if self._config.train.tensorboard else None
        with Metrics(self._folder.metrics, self._trainer.step, events) as metrics:
            self._note_start(metrics)
            finished = fit(self._trainer, self._config, self._chores(metrics), self._screen)
            save_model(self._folder.model, self._model, self._corpus.tokenizer)
            return Outcome(self._trainer.step, self._finish(metrics) if finished else None)

    def _resume(self) -> None:
        found = checkpoint.newest(self._folder.checkpoints, self._screen.say)
        if found is None:
            return
        if found.corpus != self._corpus.digest:
            raise ValueError(f"{self._folder.path} was begun with another text than data.text gives now")
        self._trainer.restore(found)
        self._screen.say(f"going on from step {found.step:,} of {self._config.train.steps:,}")

    def _note_start(self, metrics: Metrics) -> None:
        threads = torch.get_num_threads()
        before = [record for record in records(self._folder.metrics) if record["kind"] == "start"]
        if before and before[-1]["threads"] != threads:
            self._screen.say(
                f"begun with {before[-1]['threads']} threads, now {threads}: losses may differ in their last digits"
            )
        metrics.add("start", self._trainer.step, {"threads": threads, "torch": torch.__version__})

    def _chores(self, metrics: Metrics) -> Chores:
        def log(update: Update, tokens_per_second: float) -> None:
            metrics.add("train", update.step, {**asdict(update), "tokens_per_second": tokens_per_second})

        def look() -> None:
            found = self._measure(self._config.train.validate_tokens)
            step = self._trainer.step
            metrics.add("validation", step, found.to_dict())
            self._screen.say(f"step {step:,}: {found.value:.4f} bits per byte of {found.nbytes:,} held-out bytes")

        return Chores(log, look, self._save)

    def _save(self) -> None:
        checkpoint.write(
            self._folder.checkpoints, self._trainer.checkpoint(self._corpus.digest), self._config.train.keep
        )

    def _measure(self, limit: int) -> BitsPerByte:
        rows = ordered(self._corpus.held_out, self._model.config.context, self._config.train.batch_tokens, limit)
        lengths = self._corpus.tokenizer.byte_lengths()
        device = self._model.embed.weight.device
        with diverged(self._trainer.step):
            return validate(self._trainer.forward, rows, lengths, device, self._trainer.precision)

    def _finish(self, metrics: Metrics) -> dict[str, Any]:
        """The last measurements and the curve; the result is written last, so that its line says it is all there."""
        self._screen.say("reading all held-out text, with the model and with xz")
        found = self._measure(limit=0)
        compressed = xz(self._corpus, self._config.train.xz_bytes)
        levels = {"xz alone": compressed.alone, "xz after training text": compressed.after}
        curve = Curve.of(records(self._folder.metrics), levels).ending(self._trainer.step, found.value)
        result = {
            **found.to_dict(),
            "documents": self._corpus.held_out.documents,
            "xz_alone": compressed.alone,
            "xz_after": compressed.after,
            "xz_before_nbytes": compressed.before_nbytes,
            "curve": draw(curve, self._folder.path).name,
        }
        metrics.add("result", self._trainer.step, result)
        return {"kind": "result", "step": self._trainer.step, **result}


def refuse_unsound(config: TrainConfig) -> None:
    """Raises for what can be seen of a config without its text, which may take long to read.

    Raises:
        ValueError: a model, batch or device that is not to be had.
    """
    require_tensorboard(config.train)
    device_of(config.train.device)
    # Whatever the tokenizer will be, the sizes of the vocabulary that all have fit or do not fit the same.
    whole_contexts(config.train.batch_tokens, model_config(config.model, SMALLEST).context)


def corpus_of(data: DataConfig, cache: Path, screen: Screen) -> Corpus:
    """The text that a config names."""
    return load_corpus(
        data.text,
        separator=data.separator,
        held_out=data.held_out,
        tokenizer=data.tokenizer,
        vocab_size=data.vocab_size,
        cache=cache,
        say=screen.say,
    )


def model_config(values: Mapping[str, Any], vocab_size: int) -> Config:
    """The model that a table describes, with the vocabulary that the tokenizer gives.

    Raises:
        ValueError: the table is no model's, or has a vocabulary of its own.

    Example:
        >>> sizes = {"gla": {"heads": 2}, "softmax": {"heads": 4}}
        >>> table = {"d_model": 16, "context": 8, "depth": 2, "pattern": ["gla"], "mixers": sizes}
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
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"train.device {name!r} is not to be had here: {str(error).splitlines()[0]}") from error


def require_tensorboard(loop: LoopConfig) -> None:
    if loop.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("train.tensorboard needs the package tensorboard: pip install tensorboard")


def describe(corpus: Corpus, model: LanguageModel, device: torch.device) -> str:
    """What is about to be trained on what, in lines."""
    train, held = corpus.train, corpus.held_out
    text = f"training on {train.nbytes:,} bytes of {train.documents:,} documents, {len(train):,} tokens"
    kept = f"held out: {held.nbytes:,} bytes of {held.documents:,} documents, {len(held):,} tokens"
    where = f"on {device}" + (f", {torch.get_num_threads()} threads" if device.type == "cpu" else "")
    return "\n".join([text, kept, *model.summary(), where])


def verdict(result: Mapping[str, Any]) -> str:
    """The result of a finished run in lines: the model's bits per byte beside what xz makes of the same text.

    Args:
        result: of an `Outcome`.

    Returns:
        The lines.

    Cost: none.

    Example:
        >>> bits = {"bits_per_byte": 2.5, "xz_alone": 3.0, "xz_after": 2.75}
        >>> print(verdict({**bits, "nbytes": 1000, "documents": 2, "xz_before_nbytes": 5000}))
        held-out text, 1,000 bytes of 2 documents, in bits per byte:
          2.5000  this model
          3.0000  xz -9e of this text alone
          2.7500  xz -9e given 5,000 bytes of training text before it
    """
    rows = [
        (result["bits_per_byte"], "this model"),
        (result["xz_alone"], "xz -9e of this text alone"),
        (result["xz_after"], f"xz -9e given {result['xz_before_nbytes']:,} bytes of training text before it"),
    ]
    head = f"held-out text, {result['nbytes']:,} bytes of {result['documents']:,} documents, in bits per byte:"
    return "\n".join([head, *(f"  {bits:.4f}  {what}" for bits, what in rows)])
