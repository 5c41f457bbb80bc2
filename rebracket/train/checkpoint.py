"""The state of a run after a step, in one file: weights, optimizer, random numbers, step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import Tensor

from rebracket.base.files import read_tensors, write_tensors

KIND, VERSION = "checkpoint", 1
ENDING = ".safetensors"


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run after some step.

    Args:
        step: updates made.
        corpus: digest of the text and tokenizer.
        tensors: everything that the next step depends on.
    """

    step: int
    corpus: str
    tensors: Mapping[str, Tensor]


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint, whole or not at all, then removes all but the newest `keep`.

    Raises:
        OSError: the folder cannot be written; the older checkpoints are untouched.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder), Checkpoint(7, "", {"x": torch.ones(2)}), keep=2).name
        'step-000000007.safetensors'
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{checkpoint.step:09d}{ENDING}"
    write_tensors(path, checkpoint.tensors, KIND, VERSION, {"step": str(checkpoint.step), "corpus": checkpoint.corpus})
    for old in files(folder)[:-keep]:
        old.unlink()
    return path


def newest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest undamaged checkpoint; None where there is none or no such folder.

    A damaged one is renamed to `*.damaged`, reported to `say`, and the one before it is taken.
    """
    for torn in folder.glob(f".step-*{ENDING}.*"):  # what a killed process was writing
        torn.unlink()
    for path in reversed(files(folder)):
        try:
            tensors, extra = read_tensors(path, KIND, VERSION)
            return Checkpoint(int(extra["step"]), extra["corpus"], tensors)
        except (ValueError, KeyError) as error:
            path.replace(path.with_name(path.name + ".damaged"))
            say(f"{error}; set aside, going back to the checkpoint before it")
    return None


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(folder.glob(f"step-*{ENDING}"))
