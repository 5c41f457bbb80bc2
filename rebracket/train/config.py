"""A training run in numbers: read from TOML, overridden by key=value, checked field by field."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

from rebracket.lm.config import refuse_unknown
from rebracket.train.fields import as_table, check, choice, number, section


@final
@dataclass(frozen=True)
class DataConfig:
    """What is read and how it becomes tokens.

    Args:
        text: files, folders, globs, "-" (standard input), "stdlib" or "stdlib+tests".
        separator: text that divides a file into documents; "" makes each file one.
        held_out: expected share of documents to validate with, in (0, 0.5].
        tokenizer: "bpe", "bytes", or the path of a tokenizer.json.
        vocab_size: ids of a learned tokenizer, >= 257.

    Example:
        >>> DataConfig(tokenizer="bytes").text
        ('stdlib',)
    """

    text: tuple[str, ...] = ("stdlib",)
    separator: str = ""
    held_out: float = number(0.03, 1e-6, 0.5)
    tokenizer: str = "bpe"
    vocab_size: int = number(4096, 257)

    def __post_init__(self) -> None:
        check(self, "data")


@final
@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and the course of its learning rate.

    Args:
        learning_rate: the peak, > 0.
        warmup: steps of linear rise to the peak, >= 0.
        floor: where the cosine ends, as a share of the peak, in [0, 1].
        betas: decay of the running means of the gradient and of its square, each in [0, 1).
        eps: added to the root of the second, > 0.
        weight_decay: of matrices; vectors and scalars have none; >= 0.
        clip: largest norm of the whole gradient, > 0.

    Example:
        >>> OptimizerConfig(floor=2.0)
        Traceback (most recent call last):
        ValueError: optimizer.floor must be in [0, 1], got 2.0
    """

    learning_rate: float = number(2e-3, 1e-12)
    warmup: int = number(50)
    floor: float = number(0.1, 0, 1)
    betas: tuple[float, float] = field(default=(0.9, 0.95), metadata={"least": 0, "most": 1 - 1e-9})
    eps: float = number(1e-8, 1e-30)
    weight_decay: float = number(0.1)
    clip: float = number(1.0, 1e-12)

    def __post_init__(self) -> None:
        check(self, "optimizer")


@final
@dataclass(frozen=True)
class LoopConfig:
    """How long, how much at once, on what, and what is written down.

    Args:
        steps: updates of the weights, >= 1.
        batch_tokens: tokens of one packed row, a multiple of the model's context.
        accumulate: rows per update, >= 1.
        seed: of initial weights and order of text, >= 0.
        device: "auto" (CUDA where there is one, else CPU), "cpu", "cuda", "cuda:1", ...
        precision: "float32", or "bfloat16" for autocast with float32 weights.
        compile: run the model through torch.compile.
        log_every: steps between lines of metrics, >= 1.
        validate_every: steps between validations, 0 for none before the end.
        validate_tokens: about how many held-out tokens these read; the last validation reads all.
        checkpoint_every: steps between checkpoints, >= 1.
        keep: how many checkpoints stay, >= 1.
        xz_bytes: how much training text xz may read before the held-out text, for comparison, >= 0.
        tensorboard: also write TensorBoard events.

    Example:
        >>> LoopConfig(steps=10).precision
        'float32'
    """

    steps: int = number(1000, 1)
    batch_tokens: int = number(8192, 1)
    accumulate: int = number(1, 1)
    seed: int = number(0, 0, 2**63 - 1)
    device: str = "auto"
    precision: str = choice("float32", "bfloat16")
    compile: bool = False
    log_every: int = number(1, 1)
    validate_every: int = number(100)
    validate_tokens: int = number(32768, 1)
    checkpoint_every: int = number(100, 1)
    keep: int = number(2, 1)
    xz_bytes: int = number(16 << 20)
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check(self, "train")


SECTIONS = {"data": DataConfig, "optimizer": OptimizerConfig, "train": LoopConfig}


@final
@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the course of a run.

    Args:
        model: as `rebracket.lm.Config.from_dict` takes it, without vocab_size, which the tokenizer gives; `context` is
            also the length that text is cut to. `mixers` may describe more than `pattern` names.
        data: what is read.
        optimizer: how weights move.
        train: the loop.

    Raises:
        ValueError: a value outside its range.
        TypeError: a value of another kind.

    Example:
        >>> config = TrainConfig.from_dict({"model": {"context": 128}, "train": {"steps": 10}})
        >>> config.train.steps, config.optimizer.betas
        (10, (0.9, 0.95))
    """

    model: Mapping[str, Any]
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: LoopConfig = LoopConfig()

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """A config from a TOML file and `key=value` overrides.

        Args:
            path: the file.
            overrides: such as "train.steps=500" or 'model.pattern=["softmax"]'; the value is read as TOML and, where
                it is none, as plain text. Later ones win.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no TOML, an unknown key (the nearest known one is named), or a value outside its range.
            TypeError: a value of another kind.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no config at {path}")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no TOML: {error}") from error
        for override in overrides:
            apply(values, override)
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A config from nested tables, as TOML and JSON give them."""
        refuse_unknown(values, ("model", *SECTIONS), "config")
        if not isinstance(values.get("model"), Mapping):
            raise ValueError("config needs a table [model] with d_model, context and layers, or depth and pattern")
        return cls(
            values["model"], **{name: section(kind, values.get(name, {}), name) for name, kind in SECTIONS.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        """Nested tables with every value spelled out; `from_dict` makes an equal config of them."""
        return {
            "model": dict(self.model),
            **{name: as_table(getattr(self, name)) for name in SECTIONS},
        }


def apply(values: dict[str, Any], override: str) -> None:
    """Sets one dotted key in nested tables."""
    key, equals, text = override.partition("=")
    *tables, name = key.strip().split(".")
    if not equals or not name or not all(tables):
        raise ValueError(f"an override must look like train.steps=500, got {override!r}")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ValueError(f"override {override!r}: {table} is a value, not a table")
    values[name] = toml_value(text.strip())


def toml_value(text: str) -> Any:  # noqa: ANN401 - TOML holds anything
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
