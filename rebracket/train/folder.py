"""The folder of a run: one config, its metrics, its checkpoints, its model, and the text it held out."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rebracket.base.files import parse_json, replacing
from rebracket.data.sources import STDIN
from rebracket.data.text import Document, hold_out, read
from rebracket.lm.checkpoints import refuse_foreign
from rebracket.train.config import TrainConfig
from rebracket.train.metrics import records

LOCK = ".lock"
RESULT = frozenset({"bits_per_byte", "nbytes", "documents", "xz_alone", "xz_after", "xz_before_nbytes"})
"""What a whole line of metrics with the result holds."""


@final
@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    `config.json` (every value spelled out), `metrics.jsonl`, `checkpoints/`, and at the end `model/` and `curve.png`.

    Args:
        path: the folder; it need not exist.

    Example:
        >>> RunFolder(Path("runs/demo")).model.as_posix()
        'runs/demo/model'
    """

    path: Path

    @property
    def config(self) -> Path:
        """The config the run was started with."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """A folder of the newest few."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """A folder that `rebracket.lm.load_model` reads."""
        return self.path / "model"

    @property
    def curve(self) -> Path:
        """A picture of the loss."""
        return self.path / "curve.png"

    def result(self) -> dict[str, Any] | None:
        """The last line of the metrics if the run is finished, else None."""
        last = records(self.metrics)[-1:]
        return last[0] if last and last[0]["kind"] == "result" and last[0].keys() >= RESULT else None

    def refuse_other(self, config: TrainConfig) -> None:
        """Raises if anything is here that a run of this config would damage.

        Raises:
            ValueError: the folder holds no run, or the run of another config; the message names what differs.
        """
        if not self.config.is_file():
            return self._refuse_foreign()
        found = differences(*(json.loads(json.dumps(one.to_dict())) for one in (self._begun(), config)))
        if found:
            raise ValueError(
                f"{self.path} holds a run of another config: {'; '.join(found)}; give another folder, or that config"
            )
        return None

    def refuse_unusable(self) -> None:
        """Raises if no run can be written here; writes nothing.

        Raises:
            NotADirectoryError: there is a file in place of the folder or of one above it.
            PermissionError: the folder, or the nearest existing one above it, may not be written to.
        """
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(f"{self.path}: {nearest} is a file; give another folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(f"{self.path}: {nearest} may not be written to; give another folder")
        refuse_foreign(self.model)  # after all steps it would be too late

    @contextmanager
    def held(self, config: TrainConfig) -> Iterator[None]:
        """Writes the config if it is not there, and keeps other processes out of the folder.

        A run that fails before its first step leaves nothing behind.

        Raises:
            ValueError: another process uses it.
        """
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            fresh = not self.config.exists()
            if fresh:
                with replacing(self.config) as beside:
                    beside.write_text(json.dumps(config.to_dict(), indent=2) + "\n")
            try:
                yield
            except Exception:
                if fresh and all(record["kind"] == "start" for record in records(self.metrics)):
                    self._remove(made)
                raise

    def _remove(self, made: Sequence[Path]) -> None:
        """Removes what a run writes before its first step, and the folders that were made for it."""
        for path in (self.metrics, self.config, self.path / LOCK):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds something else
            for path in made:
                path.rmdir()

    def held_out(self, say: Callable[[str], None]) -> tuple[Document, ...]:
        """The documents that the run held out: its text is read and divided again.

        Args:
            say: as `rebracket.data.read` takes it.

        Raises:
            FileNotFoundError: the run's text is gone.
            ValueError: the run read standard input, or its config is damaged.
        """
        data = self._begun().data
        if STDIN in data.text:
            raise ValueError(f"{self.path} was trained on standard input, which is gone; give --text")
        return hold_out(read(data.text, data.separator, data.encoding, say), data.held_out)[1]

    def _begun(self) -> TrainConfig:
        """The config that the run was begun with."""
        try:
            return TrainConfig.from_dict(parse_json(self.config.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.config} is damaged: {error}") from error

    def _refuse_foreign(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; a run needs a folder of its own")
        foreign = [one.name for one in self.path.glob("*") if not one.name.startswith(".")]
        if foreign:
            raise ValueError(f"{self.path} holds no run but {', '.join(sorted(foreign)[:3])}; give another folder")


def model_folder(path: Path) -> Path:
    """The folder of a model: `path` itself, or `model` in it when it is the folder of a run.

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


def run_of(path: Path) -> RunFolder:
    """The run that a model came from, by the folder of either.

    Raises:
        FileNotFoundError: the model came from no run.
    """
    for run in (RunFolder(path), RunFolder(path.absolute().parent)):
        if run.metrics.is_file() and run.config.is_file():
            return run
    raise FileNotFoundError(f"{path} is not in the folder of a run, so its training text is unknown; give --text")


def differences(there: object, here: object, where: str = "") -> list[str]:
    """The dotted keys whose values differ between two nested tables, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        keys = dict.fromkeys((*there, *here))
        return [
            one
            for key in keys
            for one in differences(there.get(key), here.get(key), f"{where}.{key}" if where else str(key))
        ]
    return [] if there == here else [f"{where} was {json.dumps(there)}, now {json.dumps(here)}"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder until the block ends or the process dies; where the system has no such locks, does nothing."""
    with (folder / LOCK).open("w") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{folder} is in use by another process") from error
        yield
