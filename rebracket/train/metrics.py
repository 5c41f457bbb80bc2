"""The metrics of a run, one JSON object a line, without torn lines and steps that are to be repeated."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from rebracket.base.files import parse_json, replacing


@final
class Metrics:
    """A file of JSON lines to append to after a known step.

    Args:
        path: the file. Its records of later steps, and what follows a line that a killed process left torn, are removed
            first, so that a resumed run leaves the same file as one that was never stopped.
        step: updates that the run has made.
        events: folder for the same numbers as TensorBoard events; None for none.

    Raises:
        ValueError: events are asked for and the `tensorboard` package is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Metrics(Path(folder, "metrics.jsonl"), step=0) as metrics:
        ...         metrics.add("train", 1, {"loss": 2.5})
        ...     records(Path(folder, "metrics.jsonl"))
        [{'kind': 'train', 'step': 1, 'loss': 2.5}]
    """

    def __init__(self, path: Path, step: int, events: Path | None = None) -> None:
        self._events = event_writer(events, step) if events else None
        kept = [record for record in records(path) if record["step"] <= step]
        with replacing(path) as beside:
            beside.write_text("".join(map(line, kept)))
        self._file = path.open("a")

    def add(self, kind: str, step: int, values: Mapping[str, float | str]) -> None:
        """Writes one line and flushes it, so that a killed process does not lose it."""
        self._file.write(line({"kind": kind, "step": step, **values}))
        self._file.flush()
        if self._events is not None:
            for name, value in values.items():
                if not isinstance(value, str):
                    self._events.add_scalar(f"{kind}/{name}", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file up to the first that is torn; none where there is no file."""
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            record = parse_json(text)
            found.append({"kind": record["kind"], "step": int(record["step"]), **record})
        except (ValueError, KeyError, TypeError, OverflowError):
            break
    return found


def line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def event_writer(folder: Path, step: int) -> Any:  # noqa: ANN401 - a class of an optional library
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("train.tensorboard needs the package tensorboard: pip install tensorboard") from error
    return SummaryWriter(str(folder), purge_step=step + 1)
