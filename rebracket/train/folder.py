"""The folder of a run: one config, its metrics, its checkpoints, its model."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rebracket.base.files import replacing
from rebracket.train.config import TrainConfig
from rebracket.train.metrics import records


@final
@dataclass(frozen=True)
class RunFolder:
    """Where everything of one run lies.

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
        """The config the run was begun with."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The newest few."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """A folder that `rebracket.lm.load_model` reads."""
        return self.path / "model"

    def result(self) -> dict[str, Any] | None:
        """The last line of a run that is finished, else None."""
        last = records(self.metrics)[-1:]
        return last[0] if last and last[0]["kind"] == "result" else None

    def refuse_other(self, config: TrainConfig) -> None:
        """Raises if anything lies here that a run of this config would damage.

        Raises:
            ValueError: the folder holds no run, or the run of another config; the message names what differs.
        """
        if not self.config.is_file():
            return self._refuse_foreign()
        try:
            begun = json.loads(self.config.read_text())
        except ValueError as error:
            raise ValueError(f"{self.config} is damaged: {error}") from error
        found = differences(begun, json.loads(json.dumps(config.to_dict())))
        if found:
            raise ValueError(
                f"{self.path} holds a run of another config: {'; '.join(found)}; give another folder, or that config"
            )
        return None

    def refuse_unusable(self) -> None:
        """Raises if no run can be written here; makes nothing.

        Raises:
            NotADirectoryError: a file is in the way.
            PermissionError: the folder, or the nearest one above it that is there, is not to be written to.
        """
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(f"{self.path}: {nearest} is a file; give another folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(f"{self.path}: {nearest} may not be written to; give another folder")

    @contextmanager
    def held(self, config: TrainConfig) -> Iterator[None]:
        """Begins the run, if it has not begun, and keeps other processes out of it.

        Raises:
            ValueError: another process is in it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            if not self.config.exists():
                with replacing(self.config) as beside:
                    beside.write_text(json.dumps(config.to_dict(), indent=2) + "\n")
            yield

    def _refuse_foreign(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; a run needs a folder of its own")
        foreign = [one.name for one in self.path.glob("*") if not one.name.startswith(".")]
        if foreign:
            raise ValueError(f"{self.path} holds no run but {', '.join(sorted(foreign)[:3])}; give another folder")


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
    """Holds a folder until the block ends or the process dies; where there are no such locks, trusts the user."""
    with (folder / ".lock").open("w") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{folder} is in use by another process") from error
        yield
