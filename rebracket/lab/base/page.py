"""One page with every curve, table and verdict, and nothing beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import final

from rebracket.base.files import replacing
from rebracket.lab.base.experiment import Experiment, Result, mean_over_seeds, spread_over_seeds
from rebracket.lab.base.record import Record
from rebracket.lab.base.verdict import Verdict

TITLE = "Rebracket: the lab"
STYLE = """\
:root { color-scheme: light dark; --line: #d5d9de; --soft: #5b6570; --held: #176b2c; --refuted: #b3151d }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: #1f2328; background: #fff; overflow-wrap: break-word }
h1 { font-size: 2rem; margin-bottom: .25rem } h2 { margin: 0 0 .25rem } a { color: inherit }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem }
figure { margin: 1rem 0 } img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
td, th { padding: 3px 10px; text-align: right; border-bottom: 1px solid var(--line) }
.summary table { width: 100%; font-size: 15px } .summary td, .summary th { text-align: left; vertical-align: top }
.wide { overflow: auto; max-height: 28rem } .question { font-size: 1.1rem; margin: 0 }
.held b { color: var(--held) } .refuted b, .refuted li b { color: var(--refuted) }
.checks { padding-left: 1.25rem } .lead, .unfinished, summary, footer { color: var(--soft) } footer { font-size: 13px }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a424b; --soft: #9aa4af; --held: #58c274; --refuted: #ff7b80 }
  body { color: #e3e7eb; background: #14171a } img { box-sizing: border-box; padding: .75rem } }
@media print {
  body { max-width: none; margin: 0 } figure, tr { break-inside: avoid } h2, .question { break-after: avoid }
  .wide { max-height: none; overflow: visible } .wide table { font-size: 8px } .wide td, .wide th { padding: 1px 4px }
  details::details-content { content-visibility: visible; block-size: auto } }
"""


@final
@dataclass(frozen=True)
class Finding:
    """An experiment, what was measured of it, the means over seeds, and verdict and curve once all is measured."""

    experiment: Experiment
    record: Record
    means: Sequence[Result]
    verdict: Verdict | None
    curve: bytes

    @property
    def anchor(self) -> str:
        return f"{self.experiment.name}-{self.record.size}"

    @property
    def word(self) -> str:
        return "unfinished" if self.verdict is None else "held" if self.verdict.passed else "refuted"


def write_page(path: Path, found: Sequence[tuple[Experiment, Record]]) -> None:
    """Writes the page, which holds everything itself, and beside it every curve as NAME-SIZE.svg.

    Args:
        path: of the HTML file.
        found: experiments and what was measured of each.

    Raises:
        ValueError: If matplotlib is not installed.
    """
    findings = [judged(experiment, record) for experiment, record in found]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style>"
    )
    lead = '<p class="lead">Claims about linear attention, each beside the measurement that could have refuted it.</p>'
    body = "\n".join([summary(findings), *map(section, findings)])
    with replacing(path) as beside:
        beside.write_text(
            f'<!doctype html>\n<html lang="en">{head}\n<h1>{TITLE}</h1>\n{lead}\n{body}\n</html>\n', encoding="utf-8"
        )
    for finding in (x for x in findings if x.curve):
        with replacing(path.with_name(f"{finding.anchor}.svg")) as beside:
            beside.write_bytes(finding.curve)


def judged(experiment: Experiment, record: Record) -> Finding:
    means = mean_over_seeds(record.results)
    if len(record.results) < record.asked:
        return Finding(experiment, record, means, None, b"")
    return Finding(experiment, record, means, experiment.verdict(means), svg(experiment, means))


def summary(findings: Sequence[Finding]) -> str:
    """A row for each experiment, with a link to its section."""
    rows = "".join(
        f'<tr class="{x.word}"><td><a href="#{x.anchor}">{escape(x.experiment.name)}</a></td>'
        f"<td>{escape(x.experiment.question)}</td><td><b>{x.word.capitalize()}</b></td><td>{x.record.size}</td></tr>\n"
        for x in findings
    )
    head = row("th", ["experiment", "question", "claim", "size"])
    return f'<div class="summary"><table><thead>{head}</thead><tbody>\n{rows}</tbody></table></div>'


def section(found: Finding) -> str:
    """One experiment: question, claim, verdict, curve, table, and where it ran."""
    experiment, record = found.experiment, found.record
    head = f'<section id="{found.anchor}"><h2>{escape(experiment.name)}</h2>\n'
    asked = (
        f'<p class="question">{escape(experiment.question)}</p>\n<p><em>Claim.</em> {escape(experiment.claim)}</p>\n'
    )
    foot = f"<footer>{record.size}, {len(record.results)} cells, {seconds(record)} on {escape(record.machine)}</footer>"
    return f"{head}{asked}{shown(found)}{foot}</section>"


def shown(found: Finding) -> str:
    """Verdict, curve and table, or how far the measuring has come."""
    if found.verdict is None:
        done = f"{len(found.record.results)} of {found.record.asked} cells are measured"
        return f'<p class="unfinished"><b>Unfinished:</b> {done}.</p>\n'
    said = f'<p class="{found.word}"><b>{found.word.capitalize()}:</b></p>{checks(found.verdict, found.word)}\n'
    what = f"All {len(found.means)} points, means over seeds and, after ±, their standard deviations"
    points = f"<details><summary>{what}</summary>{table(found)}</details>"
    return f"{said}<figure>{picture(found)}</figure>\n{points}\n"


def checks(verdict: Verdict, word: str) -> str:
    """The sentence as a list, what was refuted in bold."""
    parts = [escape(part) for part in verdict.sentence.removesuffix(".").split("; ")]
    items = "".join(f"<li>{f'<b>{part}</b>' if part.startswith('REFUTED') else part}</li>" for part in parts)
    return f'<ul class="checks {word}">{items}</ul>'


def picture(found: Finding) -> str:
    """The curve as an image that the page holds itself."""
    data = base64.b64encode(found.curve).decode()
    return f'<img alt="{escape(found.experiment.name)}: measured and expected" src="data:image/svg+xml;base64,{data}">'


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


def table(found: Finding) -> str:
    """A row for each point; a column is empty where a point has no such number."""
    columns = list(dict.fromkeys(name for mean in found.means for name in {**mean.cell, **mean.numbers}))
    pairs = zip(found.means, spread_over_seeds(found.record.results), strict=True)
    body = "".join(row("td", cells(mean, spread, columns)) for mean, spread in pairs)
    return f'<div class="wide"><table><thead>{row("th", columns)}</thead><tbody>{body}</tbody></table></div>'


def cells(mean: Result, spread: Result, columns: Sequence[str]) -> list[str]:
    numbers = {k: f"{x:.4g} ± {spread[k]:.2g}" if spread[k] else f"{x:.4g}" for k, x in mean.numbers.items()}
    shown = {**{k: str(x) for k, x in mean.cell.items()}, **numbers}
    return [shown.get(column, "") for column in columns]


def row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def seconds(record: Record) -> str:
    return f"{sum(result.seconds for result in record.results):,.0f} s"
