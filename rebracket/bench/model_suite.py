"""Whole models, timed: every way to run one, side by side, and how far each is from the least time there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from rebracket.base.files import replacing
from rebracket.bench import models
from rebracket.bench.benchmark import TOLERANCES
from rebracket.bench.case import NotCoveredError
from rebracket.bench.clock import Budget, Timing, measure, threads
from rebracket.bench.limits import SIDE, product
from rebracket.bench.models.base import SIZES, Prepared, Work, model_of, products, tokens_of
from rebracket.bench.report import by_lines, machine
from rebracket.bench.suite import Report
from rebracket.bench.tables import NONE, Table, seconds
from rebracket.lm import LanguageModel

WORKS = (*(Work(texts=count) for count in (1, 8, 16, 64)), Work(tokens=2048))
QUICK_WORKS = (Work(texts=1), Work(texts=3), Work(tokens=100))
CHECKED = 48
"""Tokens after which logits are compared with the model in float64."""
PAGE, FIGURES = "models.md", "models.json"
READING = """\
A cell is the time of a token of every text, or of reading a text, in CPU seconds of one thread, and how many times
the floor it is: the bytes of the weights, and of the states that are read and written, at the rate at which torch.dot
read as many bytes as the float32 weights have in the same turns; or two operations for each weight and token at the
rate of torch.mm, whichever takes longer. Rows of others are a dense model of random weights with as many bytes; the
times of llama.cpp hold the choice of tokens and their text. Error is the largest difference of a logit from the model
in float64, in standard deviations of the logits.
"""


@final
@dataclass(frozen=True)
class ModelSuite:
    """Which models to run, and how long.

    Args:
        sizes: names of models.
        works: what is timed.
        peers: whether to run those of others too, where they are installed.
        rounds: most samples.
        seconds: for everything.
        quiet: seconds to wait for a quiet machine before each round.

    Example:
        >>> QUICK_MODELS.sizes
        ('demo',)
    """

    sizes: Sequence[str] = tuple(SIZES)
    works: Sequence[Work] = WORKS
    peers: bool = False
    rounds: int = 15
    seconds: float = 600.0
    quiet: float = 0.0


MODELS = ModelSuite()
QUICK_MODELS = ModelSuite(sizes=("demo",), works=QUICK_WORKS, rounds=3, seconds=6.0)


@final
@dataclass(frozen=True)
class Found:
    """What was found of one way to do one work.

    Args:
        model, work, way: their names.
        is_peer: whether it runs somebody else's model.
        timing: seconds of one step or one text; None where there is none.
        floor: the least seconds there are.
        error: of its logits, in standard deviations; None for another model.
        reason: why it was not timed.
        preparing: CPU seconds until it could run.
    """

    model: str
    work: str
    way: str
    is_peer: bool
    timing: Timing | None = None
    floor: float | None = None
    error: float | None = None
    reason: str = ""
    preparing: float | None = None

    @property
    def wrong(self) -> bool:
        """Whether a way in float32 gives other logits than the model."""
        rounded = not self.way.endswith(("bfloat16", "int8"))
        return self.error is not None and rounded and not self.error <= TOLERANCES[torch.float32]


Open = Callable[[Work], Prepared]


def run(suite: ModelSuite, report: Report) -> list[Found]:
    """Runs everything; `report` is told before each work how many are done, of how many, and what comes."""
    total = len(suite.sizes) * len(suite.works)
    budget = Budget(suite.rounds, suite.seconds, suite.quiet, total)
    found: list[Found] = []
    for name in suite.sizes:
        model = model_of(name)
        with ExitStack() as stack, threads(1):
            ways, refused = opened(model, suite.peers, stack)
            found += [Found(name, "", way, True, reason=reason) for way, reason in refused.items()]
            for work in suite.works:
                report(len({(x.model, x.work) for x in found if x.timing}), total, f"{name}, {work}")
                found += compared(name, model, work, ways, budget)
    return found


def opened(model: LanguageModel, peers: bool, stack: ExitStack) -> tuple[dict[tuple[str, bool], Open], dict[str, str]]:
    """Every way by name and whether it is a peer's, and why others are none."""
    ways: dict[tuple[str, bool], Open] = {}
    refused: dict[str, str] = {}
    for runner in models.found():
        if runner.is_peer and not peers:
            continue
        try:
            ways |= {(way, runner.is_peer): stack.enter_context(context) for way, context in runner.ways(model)}
        except (NotCoveredError, ValueError) as error:
            refused[type(runner).__name__] = str(error)
    return ways, refused


def compared(
    name: str, model: LanguageModel, work: Work, ways: dict[tuple[str, bool], Open], budget: Budget
) -> Iterator[Found]:
    """One work done in every way, in turns with what it is measured by."""
    ready: dict[str, Prepared] = {}
    rows: dict[str, Found] = {}
    exact = logits_of(model_of(name).double())
    for (way, is_peer), prepare in ways.items():
        begun, row = time.process_time(), Found(name, str(work), way, is_peer)
        try:
            ready[way] = prepare(work)
        except (NotCoveredError, ValueError) as error:
            yield replace(row, reason=str(error))
            continue
        rows[way] = replace(row, preparing=time.process_time() - begun)
        if logits := ready[way].logits:
            rows[way] = replace(rows[way], error=apart(logits(tokens_of(model, CHECKED)), exact))
    timed = {way: each for way, each in ready.items() if not rows[way].wrong}
    size = 4 * products(model)
    halves = torch.ones(2, size // 8)  # two streams: one alone is read more slowly
    sticks: dict[str, Callable[[], object]] = {"bytes": partial(torch.dot, *halves), "mm": product(torch.float32)}
    timings, _ = measure({**sticks, **{way: each.run for way, each in timed.items()}}, budget)
    read, multiply = size / timings["bytes"].median, 2 * SIDE**3 / timings["mm"].median
    moved = 0 if work.tokens else 2 * work.texts * model.state_nbytes(0)
    for way, row in rows.items():
        if way not in timed:
            yield replace(row, reason="wrong logits")
            continue
        floor = max((timed[way].nbytes + moved) / read, 2 * products(model) * work.rows / multiply)
        yield replace(row, timing=over(timings[way], timed[way].times), floor=floor)


def over(timing: Timing, times: int) -> Timing:
    """That of one of several things that a call did."""
    return Timing(tuple(x / times for x in timing.samples), tuple(x / times for x in timing.wall))


@torch.inference_mode()
def logits_of(model: LanguageModel) -> Tensor:
    return model(tokens_of(model, CHECKED)[None]).logits[0]


def apart(found: Tensor, exact: Tensor) -> float:
    """The largest difference, in standard deviations of the exact logits."""
    return float((found.double() - exact).abs().max() / exact.std())


def tables(found: Sequence[Found]) -> Iterator[Table]:
    """A table for each model: a line for each way, a column for each work."""
    for model in dict.fromkeys(row.model for row in found):
        mine = [row for row in found if row.model == model and row.work]
        works = list(dict.fromkeys(row.work for row in mine))
        body = []
        for way in dict.fromkeys(row.way for row in mine):
            rows = {row.work: row for row in mine if row.way == way}
            first = rows[works[0]]
            error = NONE if first.error is None else f"{first.error:.1e}"
            body.append([way, *(cell(rows[work]) for work in works), error, seconds(first.preparing or 0.0)])
        yield Table(model, ["", *works, "error", "prepared in"], body)


def cell(row: Found) -> str:
    if row.timing is None or row.floor is None:
        return "WRONG" if row.wrong else NONE
    return f"{seconds(row.timing.median)} ±{100 * row.timing.spread:.0f}% {row.timing.median / row.floor:.2f}x"


def notes(found: Sequence[Found]) -> list[str]:
    """Why ways are missing."""
    return list(dict.fromkeys(f"{row.way}: {row.reason}" for row in found if row.reason))


def write(found: Sequence[Found], folder: Path, command: str) -> None:
    """Writes the page and the figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    page = [
        "# Whole models",
        f"This page is made by\n\n```sh\n{command}\n```\n\non {machine()}.",
        READING.strip(),
        *(table.markdown() for table in tables(found)),
        *(f"- {note}" for note in notes(found)),
    ]
    figures = {"command": command, "machine": machine(), "rows": [plain(row) for row in found]}
    for name, text in ((FIGURES, by_lines(figures)), (PAGE, "\n\n".join(page))):
        with replacing(folder / name) as beside:
            beside.write_text(text + "\n", encoding="utf-8")


def plain(row: Found) -> dict[str, Any]:
    """A row in plain values."""
    kept = {name: value for name, value in vars(row).items() if name != "timing"}
    return kept | {"seconds": row.timing and row.timing.median, "samples": row.timing and row.timing.samples}
