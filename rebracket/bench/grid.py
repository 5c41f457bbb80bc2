"""Tables as text: what a terminal and a page show alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

from rebracket.bench.cases import Mode, Rule
from rebracket.bench.clock import Timing
from rebracket.bench.crossover import Line, crossover, lines, softmax_of
from rebracket.bench.limits import PRODUCT, Limits
from rebracket.bench.program import Outcome
from rebracket.bench.race import Entry, Raced, Row

NONE = "–"
UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
TITLES = {"forward": "Forward", "train": "Forward and backward", "decode": "Decode, one token"}

C = TypeVar("C", bound=Raced)


@final
@dataclass(frozen=True)
class Grid:
    """A table: its title, its head, and its rows, whose first cell is empty where it repeats the one above."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def times(outcome: Outcome) -> Iterator[Grid]:
    """What was raced: a grid for each mode and thread count."""
    raced = [row for row in outcome.rows if row.entrant != PRODUCT]  # its rate stands among the limits
    for limits in outcome.limits:
        for mode in outcome.program.modes:
            rows = [row for row in raced if row.case.mode == mode and row.threads == limits.threads]
            if rows:
                title = f"{TITLES[mode]}, {threads(limits.threads)}"
                yield Grid(title, *table("rule", rows, rule_of, time_cell, [ratios]))


def convolutions(outcome: Outcome) -> Iterator[Grid]:
    """The short convolution: a grid for each thread count."""
    for limits in outcome.limits:
        rows = [row for row in outcome.convolutions if row.threads == limits.threads]
        if rows:
            title = f"Short convolution, {threads(limits.threads)}"
            yield Grid(title, *table("mode", rows, mode_of, time_cell, [ratios]))


def rule_of(row: Row) -> str:
    return row.case.rule.title


def mode_of(row: Entry[Raced]) -> str:
    return TITLES[row.case.mode].lower()


def memory(outcome: Outcome) -> Iterator[Grid]:
    """The memory of first calls, on the first thread count."""
    first = [row for row in outcome.rows if row.threads == outcome.limits[0].threads]
    for mode in ("forward", "train"):
        rows = [row for row in first if row.case.mode == mode]
        if rows:
            yield Grid(f"Memory added, {TITLES[mode].lower()}", *table("rule", rows, rule_of, memory_cell, []))


def table(
    kind: str,
    rows: Sequence[Entry[C]],
    group: Callable[[Entry[C]], str],
    cell: Callable[[Entry[C]], str],
    summaries: Sequence[Callable[[Sequence[Entry[C]], Sequence[str]], list[str]]],
) -> tuple[list[str], list[list[str]]]:
    """Head and rows, a column for each shape: for each group, of some kind, its entrants, then what sums them up."""
    shapes = list(dict.fromkeys(str(row.case.shape) for row in rows))
    body: list[list[str]] = []
    for name in dict.fromkeys(map(group, rows)):
        mine = [row for row in rows if group(row) == name]
        lanes = [[x, *cells(mine, x, shapes, cell)] for x in dict.fromkeys(row.entrant for row in mine)]
        lanes += [summary(mine, shapes) for summary in summaries]
        told = [lane for lane in lanes if set(lane[1:]) != {NONE}]
        body += [["" if place else name, *lane] for place, lane in enumerate(told)]
    return [kind, "", *shapes], body


def cells(rows: Sequence[Entry[C]], entrant: str, shapes: Sequence[str], cell: Callable[[Entry[C]], str]) -> list[str]:
    by_shape = {str(row.case.shape): cell(row) for row in rows if row.entrant == entrant}
    return [by_shape.get(shape, NONE) for shape in shapes]


def time_cell(row: Entry[Raced]) -> str:
    """Median, spread, and how the machine's limit compares; or why there is none."""
    if row.timing is not None:
        return f"{seconds(row.timing.median)}{spread(row.timing)}{compared(row)}"
    return {"large": row.reason.partition(" a call")[0], "wrong": "WRONG", "failed": "FAILED"}.get(row.status, NONE)


def spread(timing: Timing) -> str:
    return f" ±{100 * timing.spread:.0f}%" if len(timing.samples) > 1 else ""


def compared(row: Entry[Raced]) -> str:
    if row.fraction is None:
        return ""
    return f" {1 / row.fraction:.2f}x" if row.case.mode == "decode" else f" {row.fraction:.2f}"


def memory_cell(row: Entry[Raced]) -> str:
    return NONE if row.nbytes is None else f"{row.nbytes / 1e6:,.1f} MB"


def ratios(rows: Sequence[Entry[Raced]], shapes: Sequence[str]) -> list[str]:
    """The time of the fastest peer over that of our fastest backend, at every shape."""
    return ["fastest peer / ours", *(ratio([row for row in rows if str(row.case.shape) == shape]) for shape in shapes)]


def ratio(rows: Sequence[Entry[Raced]]) -> str:
    ours = [(x.timing.median, x.entrant) for x in rows if x.timing and x.status == "timed" and not x.is_peer]
    theirs = [(x.timing.median, x.entrant) for x in rows if x.timing and x.status == "timed" and x.is_peer]
    if not ours or not theirs:
        return NONE
    return f"{min(theirs)[0] / min(ours)[0]:.2f}x {min(theirs)[1]}"


def machine_limits(found: Iterable[Limits]) -> Grid:
    """The rates of the machine."""
    head = ["threads", "torch.mm float32", "torch.mm bfloat16", "copy through memory", "copy in cache"]
    return Grid("Limits of the machine", head, [[str(x.threads), *rates(x)] for x in found])


def rates(found: Limits) -> list[str]:
    operations = [giga(x, "FLOP/s") for x in (found.float32, found.bfloat16)]
    return operations + [giga(x, "B/s") for x in (found.copy, found.cache)]


def crossovers(outcome: Outcome) -> Grid | None:
    """From which T on each rule is faster than softmax; None without a sweep."""
    found = lines(outcome.sweep)
    columns: list[tuple[Mode, int]] = list(dict.fromkeys((line.mode, line.threads) for line in found))
    rules = [rule for rule in dict.fromkeys(line.rule for line in found) if rule.name != "softmax"]
    if not rules:
        return None
    head = ["rule", *(f"{TITLES[mode].lower()}, {threads(count)}" for mode, count in columns)]
    rows = [[rule.title, *(crossover_cell(found, rule, *column) for column in columns)] for rule in rules]
    return Grid("Faster than softmax from T", head, rows)


def crossover_cell(found: Sequence[Line], rule: Rule, mode: Mode, count: int) -> str:
    line = next((x for x in found if x.rule is rule and x.mode == mode and x.threads == count), None)
    softmax = None if line is None else softmax_of(found, line)
    if line is None or softmax is None:
        return NONE
    at = crossover(line.seconds, softmax.seconds)
    if at is None:
        return f"over {max(line.seconds.keys() & softmax.seconds.keys(), default=0):,}"
    return f"below {min(line.seconds):,}" if at == 0 else f"{at:,.0f}"


def worst_errors(outcome: Outcome) -> Grid:
    """The largest error of each entrant in each mode."""
    rows = [row for row in outcome.every if row.error is not None]
    modes = list(dict.fromkeys(row.case.mode for row in rows))
    names = list(dict.fromkeys(row.entrant for row in rows))
    head = ["", *(TITLES[mode].lower() for mode in modes)]
    return Grid("Largest error", head, [[name, *(worst(rows, name, mode) for mode in modes)] for name in names])


def worst(rows: Iterable[Entry[Raced]], name: str, mode: str) -> str:
    mine = (row for row in rows if row.entrant == name and row.case.mode == mode)
    errors = [row.error for row in mine if row.error is not None]
    return f"{max(errors):.1e}" if errors else NONE


def notes(outcome: Outcome) -> list[str]:
    """Why rows are missing, a line for each entrant and reason; of what was too large, the cell says enough."""
    kept: dict[tuple[str, str], list[str]] = {}
    for row in outcome.every:
        if row.timing is None and row.status != "large":
            reason = row.reason if row.status == "refused" else f"{row.status}: {row.reason}"
            kept.setdefault((row.entrant, reason), []).append(str(row.case))
    return [f"{entrant}: {reason} ({listed(cases)})" for (entrant, reason), cases in kept.items()]


def listed(cases: Sequence[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{len(cases)} cases"


def others(outcome: Outcome) -> str:
    """How busy the machine was with something else."""
    found = [row.others for row in (*outcome.rows, *outcome.convolutions) if row.others is not None]
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


def giga(value: float, unit: str) -> str:
    return f"{value / 1e9:.1f} G{unit}"


def threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
