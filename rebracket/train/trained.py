"""What a run leaves behind: where its model lies, and text that the model never learned from."""

import json
from collections.abc import Sequence
from pathlib import Path

from rebracket.data.text import STDIN, Document, hold_out, read
from rebracket.train.config import DataConfig, TrainConfig
from rebracket.train.folder import RunFolder


def model_folder(path: Path) -> Path:
    """Where the model lies: `path` itself, or `model` in it when it is a run's folder.

    Raises:
        FileNotFoundError: there is no such folder, or the run has left no model yet.

    Example:
        >>> model_folder(Path("no/such/model"))
        Traceback (most recent call last):
        FileNotFoundError: no model or run at no/such/model
    """
    run = RunFolder(path)
    if run.model.is_dir():
        return run.model
    if not path.is_dir():
        raise FileNotFoundError(f"no model or run at {path}")
    if run.metrics.is_file():
        raise FileNotFoundError(f"{path}: this run has no model yet; it is written when training ends or is stopped")
    return path


def run_of(path: Path) -> RunFolder | None:
    """The run that a model came from, given its folder or the run's own; none where the model stands alone."""
    candidates = (RunFolder(path), RunFolder(path.absolute().parent))
    return next((run for run in candidates if run.metrics.is_file() and run.config.is_file()), None)


def held_out_text(path: Path) -> tuple[Document, ...]:
    """The documents that the run of a model held out: its text is read and divided again.

    Args:
        path: a model's folder or its run's.

    Raises:
        FileNotFoundError: the model came from no run, or the run's text is gone.
        ValueError: the run read standard input, or its config is damaged.
    """
    data = data_of(path)
    if STDIN in data.text:
        raise ValueError(f"{path} was trained on standard input, which is gone; give --text")
    return hold_out(read(data.text, data.separator), data.held_out)[1]


def data_of(path: Path) -> DataConfig:
    run = run_of(path)
    if run is None:
        raise FileNotFoundError(f"{path} lies in no run, so what it was trained on is unknown; give --text")
    try:
        return TrainConfig.from_dict(json.loads(run.config.read_text(encoding="utf-8"))).data
    except (ValueError, TypeError) as error:
        raise ValueError(f"{run.config} is damaged: {error}") from error


def longest(documents: Sequence[Document]) -> Document:
    """The longest of some documents.

    Example:
        >>> longest([Document("a", "short"), Document("b", "longer")]).name
        'b'
    """
    return max(documents, key=lambda document: document.nbytes)
