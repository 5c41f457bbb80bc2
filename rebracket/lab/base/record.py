"""The file of an experiment's results: valid after every cell, and only for the code that measured them."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, final, get_args

import rebracket
from rebracket.base.checks import one_of, text, whole
from rebracket.base.files import parse_json, replacing
from rebracket.bench.report import machine, versions
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size

KIND = "rebracket lab"
FORMAT = 1
PACKAGE = Path(rebracket.__file__).parent
# Quotes may hold what looks like a comment, so they are matched first and kept.
QUOTE_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


@final
@dataclass(frozen=True)
class Record:
    """What a file of results holds.

    Args:
        experiment: its name.
        size: of the grid.
        code: digest of the code that measured.
        commit: of the library at the last run, or its release; empty in files from before it was kept.
        date: of the last run, in UTC; empty likewise.
        asked: cells that the last run was asked for.
        machine: where it ran.
        versions: of torch and others.
        results: in the order in which they were measured.
    """

    experiment: str
    size: Size
    code: str
    asked: int
    machine: str
    versions: Mapping[str, str]
    results: tuple[Result, ...]
    commit: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        if len(self.by_cell()) < len(self.results):
            raise ValueError("a cell is there twice")

    def by_cell(self) -> dict[str, Result]:
        return {key(result.cell): result for result in self.results}

    def holds(self, cell: Cell) -> bool:
        return key(cell) in self.by_cell()

    def adding(self, result: Result) -> Record:
        return replace(self, results=(*self.results, result))

    def results_of(self, cells: Sequence[Cell]) -> list[Result]:
        """The results of some cells, in their order, as far as they have been measured."""
        found = self.by_cell()
        return [found[key(cell)] for cell in cells if key(cell) in found]


def key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def path_of(folder: Path, experiment: str, size: Size) -> Path:
    return folder / f"{experiment}.{size}.json"


def resume(path: Path, experiment: Experiment, size: Size, cells: Sequence[Cell]) -> Record:
    """The record to continue with: the file's where the same code wrote it, else an empty one."""
    today, code = datetime.now(UTC).date().isoformat(), digest(experiment)
    fresh = Record(experiment.name, size, code, len(cells), machine(), versions(), (), commit(), today)
    before = read(path) if path.exists() else fresh
    return replace(fresh, results=before.results) if before.code == fresh.code else fresh


def read(path: Path) -> Record:
    """Reads a file that `write` wrote.

    Raises:
        ValueError: If it is damaged or something else; the message names it and says what to do.
    """
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        json.dumps(found, ensure_ascii=False).encode()  # raises for text that no page can hold
        if (found.pop("kind"), found.pop("format")) != (KIND, FORMAT):
            raise ValueError(f"not of kind {KIND!r} and format {FORMAT}")
        one_of("size", found["size"], get_args(Size))
        for name in ("commit", "date"):
            found.setdefault(name, "")
        for name in ("experiment", "code", "machine", "commit", "date"):
            text(name, found[name])
        whole("asked", found["asked"])
        return Record(**found | {"results": tuple(map(result, found["results"]))})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path}: expected the results of an experiment, found something damaged or foreign "
            f"({type(error).__name__}: {error}); remove it to measure again"
        ) from error


def result(found: Mapping[str, Any]) -> Result:
    """One result of a file; raises for values that no measurement has."""
    cell, numbers, seconds = found["cell"], found["numbers"], found["seconds"]
    for value in (seconds, *numbers.values()):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"a measured number is {value!r}")
        float(value)  # raises where it is too large
    for value in cell.values():
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"a parameter of a cell is {value!r}")
    return Result(cell, numbers, seconds)


def write(path: Path, record: Record) -> None:
    """Writes a record, replacing the file whole."""
    with replacing(path) as beside:
        beside.write_text(json.dumps({"kind": KIND, "format": FORMAT, **asdict(record)}, indent=1), encoding="utf-8")


@cache
def commit() -> str:
    """The commit of the library, marked where its files differ from it; without git its release."""
    folder, git = PACKAGE.parent, shutil.which("git")
    if git and (folder / ".git").exists():
        asked = [git, "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return importlib.metadata.version("rebracket")


def digest(experiment: Experiment) -> str:
    """A digest of what an experiment's numbers depend on: its file, and the library without commands and experiments.

    Words do not count: comments, docstrings, layout, an experiment's question and claim; nor does how it is drawn.
    """
    found = hashlib.sha256()
    for path in (Path(inspect.getfile(type(experiment))), *library()):
        text = path.read_text(encoding="utf-8")
        code = python_code(text) if path.suffix == ".py" else " ".join(QUOTE_OR_COMMENT.sub(r"\1", text).split())
        found.update(f"{path.name}\n{code}\n".encode())
    return found.hexdigest()[:16]


def library() -> Iterator[Path]:
    apart = {PACKAGE / "lab", PACKAGE / "cli", *(PACKAGE / "lab/base" / name for name in ("page.py", "drawing.py"))}
    code = (x for x in sorted(PACKAGE.rglob("*")) if x.suffix in {".py", ".cpp", ".h"})
    return (x for x in code if not apart & {x, x.parent})


@cache  # one run hashes the library once for each experiment
def python_code(text: str) -> str:
    """Python source without what does not change what it does."""
    return ast.unparse(Wordless().visit(ast.parse(text)))


@final
class Wordless(ast.NodeTransformer):
    """Takes docstrings, the texts of experiments and what draws them out of a syntax tree."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        drawn_on = {"figure", "axes"} & {argument.arg for argument in node.args.args}
        return None if drawn_on and node.name.startswith("draw") else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if [ast.unparse(target) for target in node.targets] in (["question"], ["claim"]) else node
