"""What stays of a program: its figures as JSON, and a page with its tables and its plot."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rebracket.base.files import replacing
from rebracket.bench import grid
from rebracket.bench.grid import Grid
from rebracket.bench.plot import picture
from rebracket.bench.program import Outcome
from rebracket.bench.race import Entry, Raced

if TYPE_CHECKING:
    from rich.table import Table

VERSIONED = ("torch", "onnxruntime", "transformers", "fla-core", "pytorch-fast-transformers", "jax")
PROCESSORS = Path("/proc/cpuinfo")
PAGE, FIGURES, PLOT = "performance.md", "performance.json", "performance.svg"

INTRODUCTION = """\
Every result was compared with float64 before it was timed; a wrong one is not timed and is marked so. All of a race
were timed in turns, so that whatever else the machine did fell on all alike. Inputs are {dtype}. This page is made by

```sh
{command}
```

on {machine}. {others}
"""
READING = """\
A cell is the median time of a call, half the distance of its quartiles, and how it compares with what the machine can
do. Over a sequence that is a fraction of the limit: the least operations there are, 4 D^2 a token and head or 6 D^2
when erasing, three times as many with the backward pass, at the rate that torch.mm had in float32 in the same turns; or
the bytes of inputs and output at the rate of a copy, where that takes longer. In decode it is a multiple of the time of
one multiplication of the state by a number, in place. A time without a spread is that of the one call that was made,
since it was long. What begins with "about" was not measured: it follows from a smaller shape and would have taken too
long, or too much memory. Shapes are BxTxHxD.

The short convolution has shapes BxTxD, a width of 4, SiLU and no bias. Its limit is x read and y written at the rate of
a copy, and with the backward pass x and the gradient of y read and that of x written; one token has none. "torch
conv1d" is what models in plain torch do: a group for each channel, a padded sequence that is cut, and SiLU.
"""
"""How to read a grid of times."""


def write(outcome: Outcome, folder: Path, command: str) -> None:
    """Writes figures, page and plot into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / FIGURES, by_lines(figures(outcome, command)))
    save(folder / PAGE, page(outcome, command, PLOT if picture(outcome, folder / PLOT) else None))


def save(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def by_lines(values: dict[str, Any]) -> str:
    """JSON with a line for each entry, and for each item of an entry that is a list."""
    lines = {
        name: "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)
        for name, value in values.items()
    }
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {line}" for name, line in lines.items()) + "\n}"


def figures(outcome: Outcome, command: str) -> dict[str, Any]:
    """Everything that was found, in plain values."""
    return {
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "limits": [asdict(limits) for limits in outcome.limits],
        "rows": [{"rule": row.case.rule.name} | plain(row) for row in outcome.rows],
        "sweep": [{"rule": row.case.rule.name} | plain(row) for row in outcome.sweep],
        "convolutions": list(map(plain, outcome.convolutions)),
    }


def plain(row: Entry[Raced]) -> dict[str, Any]:
    """A row in plain values."""
    case = row.case
    named = {"shape": str(case.shape), "mode": case.mode, "dtype": str(case.dtype)[6:]}
    kept = {name: value for name, value in asdict(row).items() if name not in ("case", "timing")}
    timing = row.timing
    clock = {} if timing is None else {"seconds": timing.median, "low": timing.low, "high": timing.high}
    samples = {"samples": None if timing is None else list(timing.samples), "fraction": row.fraction}
    return named | kept | clock | samples


def page(outcome: Outcome, command: str, plot: str | None) -> str:
    """The page in Markdown."""
    return "\n\n".join(part.strip() for part in parts(outcome, command, plot))


def parts(outcome: Outcome, command: str, plot: str | None) -> Iterator[str]:
    dtype = str(outcome.program.dtype)[6:]
    yield "# Performance"
    yield INTRODUCTION.format(dtype=dtype, command=command, machine=machine(), others=grid.others(outcome))
    yield markdown(grid.machine_limits(outcome.limits))
    yield READING
    yield from map(markdown, (*grid.times(outcome), *grid.convolutions(outcome)))
    if (crossovers := grid.crossovers(outcome)) is not None:
        yield markdown(crossovers)
    if plot is not None:
        yield f"![Time against T]({plot})"
    yield from map(markdown, (*grid.memory(outcome), grid.worst_errors(outcome)))
    if missing := grid.notes(outcome):
        yield "\n".join(["## Not timed", "", *(f"- {note}" for note in missing)])


def markdown(table: Grid) -> str:
    lines = [row_of(table.head), row_of(["---"] * len(table.head)), *map(row_of, table.rows)]
    return f"## {table.title}\n\n" + "\n".join(lines)


def row_of(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def rich(table: Grid) -> Table:
    """A grid for the terminal; where rows belong together, a line stands above the first of them."""
    from rich.table import Table

    shown = Table(title=table.title, title_justify="left")
    for place, name in enumerate(table.head):
        shown.add_column(name, justify="left" if place < 2 else "right", no_wrap=place > 0)
    grouped = any(not row[0] for row in table.rows)
    for row in table.rows:
        if row[0] and grouped:
            shown.add_section()
        shown.add_row(*row)
    return shown


def tables(outcome: Outcome) -> Iterator[Grid]:
    """All grids, in the order of the page."""
    yield grid.machine_limits(outcome.limits)
    yield from grid.times(outcome)
    yield from grid.convolutions(outcome)
    crossovers = grid.crossovers(outcome)
    yield from () if crossovers is None else (crossovers,)
    yield from grid.memory(outcome)
    yield grid.worst_errors(outcome)


def machine() -> str:
    """Processor, instruction set and software."""
    named = (line.partition(":")[2].strip() for line in processors() if line.startswith("model name"))
    kind = next(named, platform.processor() or platform.machine())
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{kind} ({torch.backends.cpu.get_cpu_capability()}), Python {platform.python_version()}, {found}"


def processors() -> list[str]:
    return PROCESSORS.read_text().splitlines() if PROCESSORS.exists() else []


def versions() -> dict[str, str]:
    """Of torch and of the peers that are installed."""
    installed = {x.metadata["Name"]: x.version for x in importlib.metadata.distributions()}
    return {name: installed[name] for name in VERSIONED if name in installed}
