"""A training run in numbers: read from TOML, overridden by key=value, checked field by field."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from rebracket.base.checks import number, one_of, text, truth, whole, within
from rebracket.data.encoding import decode
from rebracket.lm.config import refuse_unknown, table


@final
@dataclass(frozen=True)
class DataConfig:
    """What text is read and how it becomes tokens.

    Args:
        text: files, folders, globs, "-" (standard input), "stdlib" or "stdlib+tests".
        encoding: of every file, such as "latin-1"; "auto" is UTF-8, or what a byte-order mark or zeros say.
        separator: text that divides a file into documents; "" makes each file one.
        held_out: expected share of documents to validate with, in (0, 0.5].
        tokenizer: "bpe", "bytes", or the path of a tokenizer.json.
        vocab_size: ids of a learned tokenizer, >= 257.
    """

    text: tuple[str, ...] = ("stdlib",)
    encoding: str = "auto"
    separator: str = ""
    held_out: float = 0.03
    tokenizer: str = "bpe"
    vocab_size: int = 4096

    def __post_init__(self) -> None:
        if not self.text or not all(isinstance(source, str) for source in self.text):
            raise TypeError(f"data.text must be a list of texts, at least one, got {list(self.text)}")
        for name in ("encoding", "separator", "tokenizer"):
            text(f"data.{name}", getattr(self, name))
        decode(b"", self.encoding)  # raises where Python does not know it
        number("data.held_out", self.held_out, 0, 0.5)
        whole("data.vocab_size", self.vocab_size, 257)


@final
@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate over the run.

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
        ValueError: optimizer.floor must be a number in [0, 1], got 2.0
    """

    learning_rate: float = 2e-3
    warmup: int = 50
    floor: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        whole("optimizer.warmup", self.warmup, 0)
        within("optimizer.floor", self.floor, 0, 1)
        within("optimizer.weight_decay", self.weight_decay, 0)
        for name in ("learning_rate", "eps", "clip"):
            number(f"optimizer.{name}", getattr(self, name), 0)
        if len(self.betas) != 2:
            raise ValueError(f"optimizer.betas must be a list of 2 numbers, got {list(self.betas)}")
        for beta in self.betas:
            within("optimizer.betas", beta, 0, 1 - 1e-9)


@final
@dataclass(frozen=True)
class LoopConfig:
    """How long to train, on how much at once, on what device, and what is written.

    Args:
        steps: updates of the weights, >= 1.
        batch_tokens: tokens of one packed row, a multiple of the model's context.
        accumulate: rows per update, >= 1.
        seed: of the initial weights and the order of the text, in [0, 2^63).
        device: "auto" (CUDA where there is one, else CPU), "cpu", "cuda", "cuda:1", ...
        precision: "float32", or "bfloat16" for autocast with float32 weights.
        compile: run the model through torch.compile.
        log_every: steps between lines of metrics, >= 1.
        validate_every: steps between validations, 0 for none before the end.
        validate_tokens: about how many held-out tokens these read, >= 1; the last validation reads all.
        checkpoint_every: steps between checkpoints, >= 1.
        keep: how many checkpoints to keep, >= 1.
        xz_bytes: how much training text xz may read before the held-out text, for comparison, >= 0.
        tensorboard: also write TensorBoard events.
    """

    steps: int = 1000
    batch_tokens: int = 8192
    accumulate: int = 1
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    log_every: int = 1
    validate_every: int = 100
    validate_tokens: int = 32768
    checkpoint_every: int = 100
    keep: int = 2
    xz_bytes: int = 16 << 20
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "accumulate", "log_every", "validate_tokens", "checkpoint_every", "keep"):
            whole(f"train.{name}", getattr(self, name))
        for name in ("validate_every", "xz_bytes"):
            whole(f"train.{name}", getattr(self, name), 0)
        whole("train.seed", self.seed, 0, 2**63 - 1)
        text("train.device", self.device)
        one_of("train.precision", self.precision, ("float32", "bfloat16"))
        for name in ("compile", "tensorboard"):
            truth(f"train.{name}", getattr(self, name))


SECTIONS = {"data": DataConfig, "optimizer": OptimizerConfig, "train": LoopConfig}


@final
@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the course of a run.

    Args:
        model: as `rebracket.lm.Config.from_dict` takes it, without vocab_size, which the tokenizer gives; `context` is
            also the length that text is cut to. `mixers` may describe more than `pattern` names.
        data: what is read.
        optimizer: how weights are updated.
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
            overrides: such as "train.steps=500" or 'model.pattern=["softmax"]'; the value is read as TOML, and as plain
                text if it is not TOML. Later ones win.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no TOML, an unknown key (the nearest known one is named), or a value outside its range.
            TypeError: a value of another kind.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no config at {path}")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no TOML: {error}") from error
        for override in overrides:
            apply(values, override)
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A config from nested tables, as TOML and JSON give them."""
        refuse_unknown(table(values, "config"), ("model", *SECTIONS), "config")
        if not isinstance(values.get("model"), Mapping):
            raise ValueError("config needs a table [model] with d_model, context and layers, or depth and pattern")
        return cls(values["model"], **{name: section(name, values.get(name, {})) for name in SECTIONS})

    def to_dict(self) -> dict[str, Any]:
        """Nested tables with every value spelled out; `from_dict` makes an equal config of them."""
        tables = {name: vars(getattr(self, name)) for name in SECTIONS}
        plain = {
            name: {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}
            for name, table in tables.items()
        }
        return {"model": dict(self.model), **plain}


def section(name: str, values: object) -> Any:  # noqa: ANN401 - one of the three classes
    """The part of a config in one table, its values in the types of the defaults."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must be a table, got {values!r}")
    defaults = {field.name: field.default for field in dataclasses.fields(SECTIONS[name])}
    refuse_unknown(values, defaults, name)
    return SECTIONS[name](**{key: fitted(value, defaults[key]) for key, value in values.items()})


def fitted(value: Any, default: object) -> Any:  # noqa: ANN401 - TOML holds anything
    """A list, or a single value, as a tuple where the default is one; a whole number as a float likewise."""
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    return float(value) if isinstance(default, float) and type(value) is int else value


def apply(values: dict[str, Any], override: str) -> None:
    """Sets one dotted key in nested tables."""
    key, equals, value = override.partition("=")
    *tables, name = key.strip().split(".")
    if not equals or not name or not all(tables):
        raise ValueError(f"an override must look like train.steps=500, got {override!r}")
    for one in tables:
        values = values.setdefault(one, {})
        if not isinstance(values, dict):
            raise ValueError(f"override {override!r}: {one} is a value, not a table")
    values[name] = toml_value(value.strip())


def toml_value(value: str) -> Any:  # noqa: ANN401 - TOML holds anything
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return value
