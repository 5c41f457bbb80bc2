"""Models on disk: a folder of three plain files without code, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from rebracket.base.files import parse_json, read_tensors, write_tensors
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.lm.tokenizer import Tokenizer

KIND, VERSION = "rebracket.model", 1
FEW = 3
# What file managers leave in any folder.
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def save_model(folder: str | os.PathLike[str], model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Writes `config.json`, `model.safetensors` and `tokenizer.json` to a folder; an older model there is replaced.

    A new folder is written and renamed, so a reader sees the old model or the new one.

    Args:
        folder: where to; the folder above it must exist.
        model: the model, of any dtype and device.
        tokenizer: with no more ids than the model has.

    Raises:
        ValueError: If the tokenizer has more ids than the model's vocabulary, or `folder` is a file or holds other
            files than those of a model.
        FileNotFoundError: If the folder above does not exist.

    Cost: the weights written once.

    Example:
        >>> import tempfile
        >>> config = Config.from_dict(
        ...     {"vocab_size": 257, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
        >>> with tempfile.TemporaryDirectory() as home:
        ...     save_model(home + "/tiny", LanguageModel(config), Tokenizer.bytes())
        ...     model, tokenizer = load_model(home + "/tiny")
        >>> model.config == config
        True
    """
    refuse_larger(tokenizer, model.config)
    with replacing_folder(Path(folder)) as beside:
        (beside / CONFIG).write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", encoding="utf-8")
        write_tensors(beside / WEIGHTS, model.state_dict(), KIND, VERSION, {})
        tokenizer.save(beside / TOKENIZER)


def load_model(
    folder: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[LanguageModel, Tokenizer]:
    """Reads the model and tokenizer that `save_model` wrote.

    Args:
        folder: where they are.
        device: where the weights go; they keep the dtype in which they were saved.

    Returns:
        The model and its tokenizer.

    Raises:
        FileNotFoundError: If one of the three files is not there.
        ValueError: If a file is damaged or foreign, or the weights are not those of the config.

    Cost: the weights read once.

    Example:
        >>> load_model("no/such/model")
        Traceback (most recent call last):
        FileNotFoundError: no/such/model/config.json: no such file; a model's folder holds ...
    """
    folder = Path(folder)
    config = read_config(folder / CONFIG)
    tensors, _ = read_tensors(folder / WEIGHTS, KIND, VERSION)
    complaint = f"{folder}: {WEIGHTS} holds other weights than {CONFIG} asks for"
    if len(tensors) < len(config.layers):  # a model of thousands of layers takes a minute to make
        raise ValueError(f"{complaint}: {len(tensors):,} tensors for {len(config.layers):,} layers")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    refuse_larger(tokenizer, config, f"{folder / TOKENIZER}: ")
    with torch.device("meta"):
        model = LanguageModel(config)
    refuse_other_weights(model, tensors, complaint)
    model.load_state_dict(tensors, assign=True)
    return model.to(device), tokenizer


def model_id(model: LanguageModel) -> str:
    """A short name for exactly this model: 16 hex digits of SHA-256 over its config and weights.

    Args:
        model: the model; its dtype counts, its device does not.

    Returns:
        The name.

    Cost: one pass over the weights.

    Example:
        >>> config = Config.from_dict(
        ...     {"vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
        >>> model_id(LanguageModel(config)) == model_id(LanguageModel(config))
        True
        >>> model_id(LanguageModel(config)) == model_id(LanguageModel(config, seed=1))
        False
    """
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {list(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def refuse_other_weights(model: nn.Module, tensors: Mapping[str, Tensor], complaint: str) -> None:
    """Raises a ValueError that names the first few tensors whose name or shape is not that of a weight of the model."""
    wanted, found = ({name: list(x.shape) for name, x in of.items()} for of in (model.state_dict(), tensors))
    wrong = [name for name in sorted(wanted.keys() | found.keys()) if wanted.get(name) != found.get(name)]
    if wrong:
        shown = [f"{x} must be {wanted.get(x, 'absent')}, is {found.get(x, 'absent')}" for x in wrong[:FEW]]
        more = [f"and {len(wrong) - FEW} more"] if len(wrong) > FEW else []
        raise ValueError(f"{complaint}: {'; '.join([*shown, *more])}")


def refuse_larger(tokenizer: Tokenizer, config: Config, where: str = "") -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(f"{where}tokenizer has {tokenizer.vocab_size} ids, more than the model's {config.vocab_size}")


def read_config(path: Path) -> Config:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a model's folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}")
    try:
        return Config.from_dict(parse_json(path.read_text(encoding="utf-8-sig")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or no config of a model: {error}") from error


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder that replaces `folder` on success and is deleted on failure."""
    if not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"{folder}: the folder above does not exist; make it first")
    refuse_foreign(folder)
    beside = beside_of(folder)
    beside.mkdir()
    try:
        yield beside
        swap(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def refuse_foreign(folder: Path) -> None:
    """Raises if replacing `folder` would destroy anything but a model."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder}: is a file; a model needs a folder of its own")
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in (CONFIG, WEIGHTS, TOKENIZER, *LITTER))
    if foreign:
        raise ValueError(f"{folder}: holds more than a model and would be replaced as a whole; move away {foreign}")


def beside_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def swap(new: Path, folder: Path) -> None:
    """Renames `new` to `folder` and deletes what was there."""
    old = beside_of(folder)
    if not folder.exists():
        new.rename(folder)
        return
    folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
