"""What stays of a suite: its figures as JSON, and a page with its tables and its plot."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rebracket.base.files import replacing
from rebracket.bench.benchmark import Row
from rebracket.bench.plot import picture
from rebracket.bench.suite import SuiteResult
from rebracket.bench.tables import busy, notes, tables

VERSIONED = ("torch", "onnxruntime", "transformers", "fla-core", "pytorch-fast-transformers", "jax")
PROCESSORS = Path("/proc/cpuinfo")
PAGE, FIGURES, PLOT = "performance.md", "performance.json", "performance.svg"

INTRODUCTION = """\
Every result was compared with float64 before it was timed; a wrong one is not timed and is marked so. The
implementations of a case were timed in turns, so that whatever else the machine did affected all alike. Inputs are
{dtype}. This page is made by

```sh
{command}
```

on {machine}. {others}
"""
READING = """\
A cell is the median time of a call, half the distance of its quartiles, and how it compares with what the machine can
do. On one thread the time is CPU seconds of the process, which other processes hardly lengthen; a call that waits for
threads of its own, as those of JAX do, takes longer than that. On more threads it is wall time. Over a sequence the
comparison is a fraction of the limit: the fewest operations there are, at the rate that torch.mm had in float32 in the
same turns, or the bytes of inputs and outputs at the rate of a copy, where that takes longer. In decode it is a
multiple of the time of one multiplication of the state by a number, in place. A time without a spread is that of the
one call that was made, since it was long. What begins with "about" was not measured: it follows from a smaller
shape and would have taken too long, or too much memory. Functions called are those of Python and the builtin ones, in
the case with the fewest.
"""
"""How to read a table of times."""


def write(result: SuiteResult, folder: Path, command: str) -> None:
    """Writes figures, page and plot into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = PLOT if picture(result, folder / PLOT) else None
    for name, text in ((FIGURES, by_lines(figures(result, command))), (PAGE, page(result, command, plot))):
        with replacing(folder / name) as beside:
            beside.write_text(text + "\n", encoding="utf-8")


def by_lines(values: dict[str, Any]) -> str:
    """JSON with a line for each entry, and for each item of an entry that is a list."""
    lines = {
        name: "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)
        for name, value in values.items()
    }
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {line}" for name, line in lines.items()) + "\n}"


def figures(result: SuiteResult, command: str) -> dict[str, Any]:
    """Everything that was found, in plain values."""
    return {
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "limits": [vars(limits) for limits in result.limits],
        "rows": list(map(plain, result.rows)),
        "sweep": list(map(plain, result.sweep)),
    }


def plain(row: Row) -> dict[str, Any]:
    """A row in plain values."""
    case, timing = row.case, row.timing
    named = {"rule": case.name, "shape": case.size, "mode": case.mode, "dtype": str(case.dtype)[6:]}
    kept = {name: value for name, value in vars(row).items() if name not in ("case", "timing")}
    if timing is None:
        return named | kept | {"samples": None, "wall": None, "fraction": None}
    clock = {"seconds": timing.median, "low": timing.low, "high": timing.high}
    return named | kept | clock | {"samples": timing.samples, "wall": timing.wall, "fraction": row.fraction}


def page(result: SuiteResult, command: str, plot: str | None) -> str:
    """The page in Markdown."""
    return "\n\n".join(part.strip() for part in parts(result, command, plot))


def parts(result: SuiteResult, command: str, plot: str | None) -> Iterator[str]:
    dtype = str(result.suite.dtype)[6:]
    yield "# Performance"
    yield INTRODUCTION.format(dtype=dtype, command=command, machine=machine(), others=busy(result))
    limits, *others = tables(result)
    yield from (limits.markdown(), reading(result))
    yield from (table.markdown() for table in others)
    if plot is not None:
        yield f"## Time against T\n\n![Time against T]({plot})"
    if missing := notes(result):
        yield "\n".join(["## Not timed", "", *(f"- {note}" for note in missing)])


def reading(result: SuiteResult) -> str:
    """How to read the tables, and what the operators in them have to say."""
    notes = dict.fromkeys(row.case.note for row in result.rows if row.case.note)
    return "\n".join([READING, *(textwrap.fill(note, 120) for note in notes)])


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
