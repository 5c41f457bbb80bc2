"""The report: one HTML page with every verdict, curve and table."""

from __future__ import annotations

import base64
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from jinja2 import Environment

from rebracket.base.files import replacing
from rebracket.lab.base.experiment import Experiment, Result, mean_over_seeds, spread_over_seeds
from rebracket.lab.base.record import Record
from rebracket.lab.base.verdict import Verdict

PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rebracket: the lab</title>
<style>
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
</style>
<h1>Rebracket: the lab</h1>
<p class="lead">Claims about linear attention, each beside the measurement that could have refuted it.</p>
<div class="summary"><table>
<thead><tr><th>experiment</th><th>question</th><th>claim</th><th>size</th></tr></thead>
<tbody>
{% for x in findings %}
<tr class="{{ x.word }}"><td><a href="#{{ x.anchor }}">{{ x.experiment.name }}</a></td><td>{{ x.experiment.question }}\
</td><td><b>{{ x.word | capitalize }}</b></td><td>{{ x.record.size }}</td></tr>
{% endfor %}
</tbody></table></div>
{% for x in findings %}
<section id="{{ x.anchor }}"><h2>{{ x.experiment.name }}</h2>
<p class="question">{{ x.experiment.question }}</p>
<p><em>Claim.</em> {{ x.experiment.claim }}</p>
{% if x.verdict %}
<p class="{{ x.word }}"><b>{{ x.word | capitalize }}:</b></p>
<ul class="checks {{ x.word }}">
{% for check in x.checks %}
<li>{% if check.startswith("REFUTED") %}<b>{{ check }}</b>{% else %}{{ check }}{% endif %}</li>
{% endfor %}
</ul>
<figure><img alt="{{ x.experiment.name }}: measured and expected" src="data:image/svg+xml;base64,{{ x.image }}">
</figure>
<details><summary>All {{ x.means | length }} points, means over seeds and, after ±, their standard deviations</summary>
<div class="wide"><table><thead>
<tr>{% for name in x.columns %}<th>{{ name }}</th>{% endfor %}</tr>
</thead><tbody>
{% for row in x.rows() %}
<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></details>
{% else %}
<p class="unfinished"><b>Unfinished:</b> {{ x.record.results | length }} of {{ x.record.asked }} cells are measured.</p>
{% endif %}
<footer>{{ x.record.size }}, {{ x.record.results | length }} cells, {{ "{:,.0f}".format(x.seconds) }} s \
on {{ x.record.machine }}</footer></section>
{% endfor %}
</html>
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

    @property
    def checks(self) -> list[str]:
        return self.verdict.sentence.removesuffix(".").split("; ") if self.verdict else []

    @property
    def image(self) -> str:
        return base64.b64encode(self.curve).decode()

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.record.results)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for mean in self.means for name in {**mean.cell, **mean.numbers}))

    def rows(self) -> Iterator[list[str]]:
        """The table, a row for each point; a column is empty where a point has no such number."""
        for mean, spread in zip(self.means, spread_over_seeds(self.record.results), strict=True):
            numbers = {k: f"{x:.4g} ± {spread[k]:.2g}" if spread[k] else f"{x:.4g}" for k, x in mean.numbers.items()}
            yield [str({**mean.cell, **numbers}.get(name, "")) for name in self.columns]


def write_page(
    path: Path, found: Sequence[tuple[Experiment, Record]], say: Callable[[str], None] = warnings.warn
) -> None:
    """Writes the page, which loads nothing, and beside it every curve as NAME-SIZE.svg.

    Args:
        path: of the HTML file.
        found: experiments and what was measured of each.
        say: is called with a line for each that is left out, because its cells are not those of the experiment.

    Raises:
        ValueError: If matplotlib is not installed, or everything was left out.
    """
    findings = []
    for experiment, record in found:
        try:
            findings.append(judged(experiment, record))
        except DamagedError as error:
            say(f"left out: {error}")
    if not findings:
        raise ValueError("no results that can be shown; remove the damaged ones to measure again")
    template = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    with replacing(path) as beside:
        beside.write_text(template.render(findings=findings), encoding="utf-8")
    for finding in (x for x in findings if x.curve):
        with replacing(path.with_name(f"{finding.anchor}.svg")) as beside:
            beside.write_bytes(finding.curve)


@final
class DamagedError(ValueError):
    """Results of other cells or numbers than the experiment measures."""


def judged(experiment: Experiment, record: Record) -> Finding:
    """A finding; cells and numbers of a damaged file may make anything in it fail.

    Raises:
        DamagedError: If the results are not such as the experiment gives.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the report draws with matplotlib: pip install 'rebracket[plots]'")
    try:
        means = mean_over_seeds(record.results)
        finished = len(record.results) >= record.asked
        verdict, curve = (experiment.verdict(means), svg(experiment, means)) if finished else (None, b"")
        finding = Finding(experiment, record, means, verdict, curve)
        list(finding.rows())
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        about = f"{experiment.name}.{record.size}: not the results of this experiment"
        raise DamagedError(f"{about} ({type(error).__name__}: {error}); remove the file to measure again") from error
    return finding


def svg(experiment: Experiment, means: Sequence[Result]) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "rebracket", "legend.frameon": False, "axes.grid": True}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        experiment.draw(means, figure)
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None})
    return drawn.getvalue()
