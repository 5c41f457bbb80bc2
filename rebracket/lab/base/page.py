"""One page with every curve, table and verdict, and nothing beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rebracket.lab.base.experiment import Experiment, Result, mean_over_seeds
from rebracket.lab.base.record import Record
from rebracket.ops.files import replacing

STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
section { border-top: 1px solid #ccc; margin-top: 2rem } img { max-width: 100% }
table { border-collapse: collapse; font-size: 13px } td, th { padding: 2px 8px; text-align: right }
.held { color: #176b2c } .refuted { color: #a3151b } .unfinished, footer { color: #666 }
"""


def write_page(path: Path, found: Sequence[tuple[Experiment, Record]]) -> None:
    """Writes the page.

    Args:
        path: of the HTML file.
        found: experiments and what was measured of each.

    Raises:
        ValueError: If matplotlib is not installed.
    """
    body = "\n".join(section(experiment, record) for experiment, record in found)
    title = "Rebracket: the lab"
    with replacing(path) as beside:
        beside.write_text(
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>\n'
            f"<h1>{title}</h1>\n{body}\n</html>\n",
            encoding="utf-8",
        )


def section(experiment: Experiment, record: Record) -> str:
    """One experiment: question, claim, verdict, curve, table, and where it ran."""
    head = f"<section><h2>{escape(experiment.name)}</h2>\n<p>{escape(experiment.question)}</p>\n"
    claim = f"<p><em>Claim.</em> {escape(experiment.claim)}</p>\n"
    foot = f"<footer>{record.size}, {len(record.results)} cells, {seconds(record)} on {escape(record.machine)}</footer>"
    return f"{head}{claim}{findings(experiment, record)}{foot}</section>"


def findings(experiment: Experiment, record: Record) -> str:
    if len(record.results) < record.asked:
        done = f"{len(record.results)} of {record.asked} cells are measured"
        return f'<p class="unfinished"><strong>Unfinished:</strong> {done}.</p>\n'
    means = mean_over_seeds(record.results)
    verdict = experiment.verdict(means)
    word = "held" if verdict.passed else "refuted"
    judged = f'<p class="{word}"><strong>{word.capitalize()}:</strong> {escape(verdict.sentence)}</p>\n'
    return f"{judged}{picture(experiment, means)}\n<details><summary>Table</summary>{table(means)}</details>\n"


def picture(experiment: Experiment, means: Sequence[Result]) -> str:
    """The curve as an image that the page holds itself."""
    data = base64.b64encode(svg(experiment, means)).decode()
    return f'<img alt="{escape(experiment.name)}: measured and expected" src="data:image/svg+xml;base64,{data}">'


def svg(experiment: Experiment, means: Sequence[Result]) -> bytes:
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("the report draws with matplotlib: pip install 'rebracket[plots]'") from error
    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "rebracket", "legend.frameon": False, "axes.grid": True}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        experiment.draw(means, figure)
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None})
    return drawn.getvalue()


def table(means: Sequence[Result]) -> str:
    """A row for each point; a column is empty where a point has no such number."""
    columns = list(dict.fromkeys(name for mean in means for name in {**mean.cell, **mean.numbers}))
    head = row("th", columns)
    return f"<table>{head}{''.join(row('td', cells(mean, columns)) for mean in means)}</table>"


def cells(mean: Result, columns: Sequence[str]) -> list[str]:
    shown = {**{k: str(x) for k, x in mean.cell.items()}, **{k: f"{x:.4g}" for k, x in mean.numbers.items()}}
    return [shown.get(column, "") for column in columns]


def row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def seconds(record: Record) -> str:
    return f"{sum(result.seconds for result in record.results):,.0f} s"
