"""Tables as text: what a terminal and a page show alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from rebracket.bench.benchmark import Row
from rebracket.bench.case import TITLES, Heading
from rebracket.bench.crossover import SOFTMAX, Line, crossover, lines, softmax_of
from rebracket.bench.limits import PRODUCT, Limits
from rebracket.bench.suite import SuiteResult

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NONE = "–"
UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
RATIO = "fastest peer / ours"


@final
@dataclass(frozen=True)
class Table:
    """A title, a head, and rows, whose first cell is empty where it repeats the one above."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(
            [f"## {self.title}\n", *("| " + " | ".join(cell.replace("|", "/") for cell in x) + " |" for x in lines)]
        )

    def rich(self) -> RichTable:
        """For the terminal; where rows belong together, a line stands above the first of them."""
        from rich.table import Table as RichTable

        shown = RichTable(title=self.title, title_justify="left")
        for place, name in enumerate(self.head):
            shown.add_column(name, justify="left" if place < 2 else "right", no_wrap=place > 0)
        grouped = any(not row[0] for row in self.rows)
        for row in self.rows:
            if row[0] and grouped:
                shown.add_section()
            shown.add_row(*row)
        return shown


def tables(result: SuiteResult) -> Iterator[Table]:
    """All of them, in the order of the page."""
    yield machine_limits(result.limits)
    yield from times(result)
    crossovers = softmax_crossovers(result)
    yield from () if crossovers is None else (crossovers,)
    yield from memory(result)
    yield by_table(result, "Functions called", functions_cell)
    yield by_table(result, "Largest error", error_cell)


def machine_limits(found: Sequence[Limits]) -> Table:
    """The rates of the machine."""
    head = ["threads", "torch.mm float32", "torch.mm bfloat16", "copy through memory", "copy in cache"]
    rates = [[(x.float32, "FLOP/s"), (x.bfloat16, "FLOP/s"), (x.copy, "B/s"), (x.cache, "B/s")] for x in found]
    cells = [[f"{rate / 1e9:.1f} G{unit}" for rate, unit in row] for row in rates]
    return Table("Limits of the machine", head, [[str(x.threads), *row] for x, row in zip(found, cells, strict=True)])


def times(result: SuiteResult) -> Iterator[Table]:
    """What was benchmarked: a table for each heading and thread count."""
    for limits in result.limits:
        # The rate of the product stands among the limits.
        rows = [row for row in result.rows if row.threads == limits.threads and row.implementation != PRODUCT]
        yield from grouped(rows, "{}, " + threads(limits.threads), time_cell, ratio)


def memory(result: SuiteResult) -> Iterator[Table]:
    """The memory of first calls, on the first thread count."""
    rows = [row for row in result.rows if row.threads == result.limits[0].threads and row.case.mode != "decode"]
    for table in grouped([row for row in rows if row.implementation != PRODUCT], "{}", memory_cell):
        yield Table(f"Memory added, {table.title[:1].lower()}{table.title[1:]}", table.head, table.rows)


def grouped(
    rows: Sequence[Row],
    title: str,
    cell: Callable[[Row], str],
    summary: Callable[[Sequence[Row]], str] | None = None,
) -> Iterator[Table]:
    """A table for each heading, with a column for each shape.

    For each group of its first column: a line for each implementation, and one that sums up every shape.
    """
    headings: dict[str, list[tuple[Heading, Row]]] = {}
    for row in rows:
        heading = row.case.heading
        headings.setdefault(heading.table, []).append((heading, row))
    for name, found in headings.items():
        shapes = list(dict.fromkeys(row.case.size for _, row in found))
        groups = {heading.group: [row for other, row in found if other == heading] for heading, _ in found}
        body = [line for group, mine in groups.items() for line in lines_of(group, mine, shapes, cell, summary)]
        yield Table(title.format(name), [found[0][0].column, "", *shapes], body)


def lines_of(
    group: str,
    rows: Sequence[Row],
    shapes: Sequence[str],
    cell: Callable[[Row], str],
    summary: Callable[[Sequence[Row]], str] | None,
) -> list[list[str]]:
    """The lines of one group, but those in which no cell says anything."""
    cells = {(row.implementation, row.case.size): cell(row) for row in rows}
    names = dict.fromkeys(row.implementation for row in rows)
    found = [[name, *(cells.get((name, shape), NONE) for shape in shapes)] for name in names]
    if summary is not None:
        found.append([RATIO, *(summary([row for row in rows if row.case.size == shape]) for shape in shapes)])
    told = [line for line in found if set(line[1:]) != {NONE}]
    return [["" if i else group, *line] for i, line in enumerate(told)]


def time_cell(row: Row) -> str:
    """Median, spread, and how the machine's limit compares; or why there is none."""
    if row.timing is None:
        return {"large": row.reason.partition(" a call")[0], "wrong": "WRONG", "failed": "FAILED"}.get(row.status, NONE)
    spread = f" ±{100 * row.timing.spread:.0f}%" if len(row.timing.samples) > 1 else ""
    if row.fraction is None:
        return seconds(row.timing.median) + spread
    compared = f"{1 / row.fraction:.2f}x" if row.case.mode == "decode" else f"{row.fraction:.2f}"
    return f"{seconds(row.timing.median)}{spread} {compared}"


def memory_cell(row: Row) -> str:
    return NONE if row.nbytes is None else f"{row.nbytes / 1e6:,.1f} MB"


def ratio(rows: Sequence[Row]) -> str:
    """The time of the fastest peer over that of our fastest backend."""
    timed = [(x.timing.median, x.implementation, x.is_peer) for x in rows if x.timing and x.status == "timed"]
    ours, theirs = ([x for x in timed if x[2] is is_peer] for is_peer in (False, True))
    if not ours or not theirs:
        return NONE
    return f"{min(theirs)[0] / min(ours)[0]:.2f}x {min(theirs)[1]}"


def softmax_crossovers(result: SuiteResult) -> Table | None:
    """From which T on each rule is faster than softmax; None without a sweep."""
    found = lines(result.sweep)
    columns = list(dict.fromkeys((line.mode, line.threads) for line in found))
    rules = list(dict.fromkeys(line.title for line in found if line.rule != SOFTMAX))
    if not rules:
        return None
    cells = {(line.title, line.mode, line.threads): crossover_cell(found, line) for line in found}
    head = ["rule", *(f"{TITLES[mode].lower()}, {threads(count)}" for mode, count in columns)]
    rows = [[rule, *(cells.get((rule, *column), NONE) for column in columns)] for rule in rules]
    return Table("Faster than softmax from T", head, rows)


def crossover_cell(found: Sequence[Line], line: Line) -> str:
    softmax = softmax_of(found, line)
    at = crossover(line.seconds, softmax)
    if at is None:
        return f"over {max(line.seconds.keys() & softmax.keys(), default=0):,}" if softmax else NONE
    return f"below {min(line.seconds):,}" if at == 0 else f"{at:,.0f}"


def by_table(result: SuiteResult, title: str, cell: Callable[[Sequence[Row]], str]) -> Table:
    """A line for each implementation, and a column for each table of times."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in result.every:
        if row.error is not None:
            rows.setdefault((row.implementation, row.case.heading.table), []).append(row)
    names, columns = dict.fromkeys(name for name, _ in rows), dict.fromkeys(column for _, column in rows)
    body = [[name, *(cell(rows.get((name, column), [])) for column in columns)] for name in names]
    return Table(title, ["", *columns], body)


def error_cell(rows: Sequence[Row]) -> str:
    errors = [row.error for row in rows if row.error is not None]
    return f"{max(errors):.1e}" if errors else NONE


def functions_cell(rows: Sequence[Row]) -> str:
    found = [row.functions for row in rows if row.functions is not None]
    return str(min(found)) if found else NONE


def notes(result: SuiteResult) -> list[str]:
    """Why rows are missing, a line for each implementation and reason; of what was too large, the cell says enough."""
    kept: dict[tuple[str, str], list[str]] = {}
    for row in result.every:
        if row.timing is None and row.status != "large":
            reason = row.reason if row.status == "refused" else f"{row.status}: {row.reason}"
            kept.setdefault((row.implementation, reason), []).append(str(row.case))
    listed = {key: x[0] if len(x) == 1 else f"{len(x)} cases" for key, x in kept.items()}
    return [f"{name}: {reason} ({which})" for (name, reason), which in listed.items()]


def busy(result: SuiteResult) -> str:
    """How busy the machine was with something else."""
    found = [row.others for row in result.rows if row.others is not None]
    if not found:
        return "This system does not tell what other processes did meanwhile."
    mean = sum(found) / len(found)
    return f"Other processes kept {mean:.2f} cores busy meanwhile on average, {max(found):.2f} at most."


def seconds(value: float) -> str:
    """A time in the unit that suits it.

    Example:
        >>> seconds(0.01234), seconds(57.1e-6)
        ('12.3 ms', '57.1 us')
    """
    unit, scale = next(((unit, scale) for unit, scale in UNITS if value * scale >= 1), UNITS[-1])
    return f"{value * scale:.3g} {unit}"


def threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
