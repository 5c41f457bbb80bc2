"""The file of an experiment's results: valid after every cell, and only of the code that measured them."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

import rebracket
from rebracket.base.files import replacing
from rebracket.bench.report import machine, versions
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size

KIND = "rebracket lab"
FORMAT = 1
PACKAGE = Path(rebracket.__file__).parent
CODE = {".py", ".cpp", ".h"}


@final
@dataclass(frozen=True)
class Record:
    """What a file holds.

    Args:
        experiment: its name.
        size: of the grid.
        code: digest of the code that measured.
        asked: cells that the last run was asked for.
        machine: where it ran.
        versions: of torch and others.
        results: in the order in which they came.
    """

    experiment: str
    size: Size
    code: str
    asked: int
    machine: str
    versions: Mapping[str, str]
    results: tuple[Result, ...]

    def __post_init__(self) -> None:
        if len({key(result.cell) for result in self.results}) < len(self.results):
            raise ValueError("a cell is there twice")

    def holds(self, cell: Cell) -> bool:
        """Whether a cell has been measured."""
        return key(cell) in {key(result.cell) for result in self.results}

    def adding(self, result: Result) -> Record:
        return replace(self, results=(*self.results, result))

    def of(self, cells: Sequence[Cell]) -> list[Result]:
        """The results of some cells, in their order, as far as they are there."""
        found = {key(result.cell): result for result in self.results}
        return [found[key(cell)] for cell in cells if key(cell) in found]


def key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def path_of(folder: Path, experiment: str, size: Size) -> Path:
    return folder / f"{experiment}.{size}.json"


def begin(path: Path, experiment: Experiment, size: Size, cells: Sequence[Cell]) -> Record:
    """The record to go on with: that of the file where the same code wrote it, else an empty one."""
    fresh = Record(experiment.name, size, digest(experiment), len(cells), machine(), versions(), ())
    before = read(path) if path.exists() else fresh
    return replace(fresh, results=before.results) if before.code == fresh.code else fresh


def read(path: Path) -> Record:
    """Reads a file that `write` wrote.

    Raises:
        ValueError: If it is damaged or something else; the message names it and says what to do.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found.pop("kind"), found.pop("format")) != (KIND, FORMAT):
            raise ValueError(f"not of kind {KIND!r} and format {FORMAT}")
        results = tuple(Result(x["cell"], x["numbers"], x["seconds"]) for x in found.pop("results"))
        return Record(**found, results=results)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected the results of an experiment, found something damaged or foreign "
            f"({type(error).__name__}: {error}); remove it to measure anew"
        ) from error


def write(path: Path, record: Record) -> None:
    """Writes a record beside its place and renames it."""
    with replacing(path) as beside:
        beside.write_text(json.dumps({"kind": KIND, "format": FORMAT, **asdict(record)}, indent=1), encoding="utf-8")


def digest(experiment: Experiment) -> str:
    """What the numbers of an experiment depend on: the package's sources, but for commands and other experiments."""
    found = hashlib.sha256()
    for path in (Path(inspect.getfile(type(experiment))), *library()):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def library() -> Iterator[Path]:
    apart = (PACKAGE / "lab", PACKAGE / "cli")
    return (path for path in sorted(PACKAGE.rglob("*")) if path.suffix in CODE and path.parent not in apart)
