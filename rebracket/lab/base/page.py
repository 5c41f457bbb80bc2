"""The report: one HTML page with every verdict, curve and table."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from jinja2 import Environment

from rebracket.base.files import replacing
from rebracket.lab.base.experiment import Experiment, Result, mean_over_seeds, spread_over_seeds
from rebracket.lab.base.record import Record, digest
from rebracket.lab.base.verdict import OUTCOMES, Check, Verdict

PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rebracket: the lab</title>
<style>
:root { color-scheme: light dark; --line: #d5d9de; --soft: #5b6570;
  --held: #176b2c; --refuted: #b3151d; --open: #8a5a00 }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: #1f2328; background: #fff; overflow-wrap: break-word }
h1 { font-size: 2rem; margin-bottom: .25rem } h2 { margin: 0 0 .25rem } a { color: inherit }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem }
figure { margin: 1rem 0; overflow-x: auto }
img { display: block; width: 100%; min-width: 42rem; height: auto; background: #fff; border-radius: 6px }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums }
td, th { padding: 3px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
.summary td:nth-child(2), .checks td:nth-child(2), .summary td:nth-child(4) { min-width: 12rem }
.points { font-size: 13px } .points td, .points th { text-align: right; white-space: nowrap }
.checks td:nth-child(n+3):nth-child(-n+6) { white-space: nowrap }
.wide { overflow: auto } .tall { max-height: 28rem } .question { font-size: 1.1rem; margin: 0 }
.held b { color: var(--held) } .refuted b { color: var(--refuted) } .open b { color: var(--open) }
.lead, .unfinished, .old, summary, footer, .source { color: var(--soft) }
footer, .source { font-size: 13px } td.source { min-width: 15rem }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a424b; --soft: #9aa4af; --held: #58c274; --refuted: #ff7b80; --open: #e0a840 }
  body { color: #e3e7eb; background: #14171a } img { box-sizing: border-box; padding: .75rem } }
@media print {
  body { max-width: none; margin: 0 } figure, tr { break-inside: avoid } h2, .question { break-after: avoid }
  .tall { max-height: none; overflow: visible } .points { font-size: 8px } .points td, .points th { padding: 1px 4px }
  details::details-content { content-visibility: visible; block-size: auto } }
</style>
<h1>Rebracket: the lab</h1>
<p class="lead">Claims about linear attention, each beside the measurement that could have refuted it. What was
learned is judged by an interval, the mean over seeds ± 2 standard errors: a check is held or refuted where all of it
lies on one side of the bound, else open.</p>
<div class="summary wide"><table>
<thead><tr><th>experiment</th><th>question</th><th>claim</th><th>the check that decides it</th>
<th>measured</th></tr></thead>
<tbody>
{% for x in findings %}
<tr class="{{ x.word }}"><td><a href="#{{ x.anchor }}">{{ x.experiment.name }}</a></td><td>{{ x.experiment.question }}\
</td><td><b>{{ x.word | capitalize }}</b></td>\
<td>{% if x.closest %}{{ x.closest.what }}: {{ x.closest.measured }}, {{ x.closest.bounds }}{% endif %}</td>\
<td>{{ x.record.size }}{% if x.outdated %}, by other code{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
{% for x in findings %}
<section id="{{ x.anchor }}"><h2>{{ x.experiment.name }}</h2>
<p class="question">{{ x.experiment.question }}</p>
<p><em>Claim.</em> {{ formulas(x.experiment.claim) | safe }}</p>
{% if x.outdated %}
<p class="old"><b>Measured by other code</b> than what draws this page{% if x.verdict is none %}; its cells are not
those that the claim is about today, so it is not judged{% endif %}.</p>
{% endif %}
{% if x.verdict %}
<p class="{{ x.word }}"><b>{{ x.word | capitalize }}:</b> {{ x.counts }}.{% if x.verdict.note %} {{ x.verdict.note }}\
{% endif %}</p>
<div class="wide"><table class="checks"><thead><tr><th>outcome</th><th>what</th><th>predicted</th><th>found</th>
<th>bound</th><th>seeds</th><th>where the bound comes from</th></tr></thead><tbody>
{% for check in x.verdict.checks %}
<tr class="{{ check.outcome }}"><td><b>{{ check.outcome }}</b></td><td>{{ formulas(check.what) | safe }}\
{% if check.cells > 1 %}, the worst of {{ check.cells }}{% endif %}</td>\
<td>{% if check.predicted is not none %}{{ "%.3g" | format(check.predicted) }}{% endif %}</td>\
<td>{{ check.measured }}</td><td>{{ check.bounds }}</td><td>{{ check.seeds or "exact" }}</td>\
<td class="source">{{ formulas(check.source) | safe }}</td></tr>
{% endfor %}
</tbody></table></div>
<figure><img alt="{{ x.experiment.name }}: measured and expected" src="data:image/svg+xml;base64,{{ x.image }}">
</figure>
{% elif x.unfinished %}
<p class="unfinished"><b>Unfinished:</b> {{ x.record.results | length }} of {{ x.record.asked }} cells are measured.</p>
{% endif %}
<details><summary>All {{ x.means | length }} points, means over seeds and, after ±, their standard deviations</summary>
{% for columns, rows in x.tables() %}
<div class="wide tall"><table class="points"><thead>
<tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr>
</thead><tbody>
{% for row in rows %}
<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
</details>
<footer>{{ x.record.size }}, {{ x.record.results | length }} cells at seeds {{ x.seeds }}, \
{{ "{:,.0f}".format(x.seconds) }} s on {{ x.record.machine }}{% if x.record.date %}; {{ x.record.date }}{% endif %}\
{% if x.record.commit %}, commit {{ x.record.commit }}{% else %}, commit not recorded{% endif %}. Again: \
<code>rebracket lab run {{ x.experiment.name }} --{{ "full" if x.record.size == "full" else "quick" }}</code></footer>
</section>
{% endfor %}
</html>
"""
POWER = re.compile(r"\^(\([^()]*\)|-?\w+(?:/\d+)?)")
INDEX = re.compile(r"(?<![A-Za-z_])([A-Za-z])_(\([^()]*\)|[a-z]{1,3}|[A-Z0-9])(?![A-Za-z_])")


def formulas(text: str) -> str:
    """A text as HTML, with x^2 and x_t as they are written by hand.

    Example:
        >>> formulas("|k|^2 < y_(t-1)")
        '|k|<sup>2</sup> &lt; y<sub>t-1</sub>'
    """
    raised = POWER.sub(lambda x: f"<sup>{x[1].strip('()')}</sup>", html.escape(text))
    return INDEX.sub(lambda x: f"{x[1]}<sub>{x[2].strip('()')}</sub>", raised)


@final
@dataclass(frozen=True)
class Finding:
    """An experiment, what was measured of it, the means over seeds, and verdict and curve once all is measured."""

    experiment: Experiment
    record: Record
    means: Sequence[Result]
    verdict: Verdict | None
    curve: bytes
    outdated: bool

    @property
    def anchor(self) -> str:
        return f"{self.experiment.name}-{self.record.size}"

    @property
    def unfinished(self) -> bool:
        return len(self.record.results) < self.record.asked

    @property
    def word(self) -> str:
        return self.verdict.outcome if self.verdict else "unfinished" if self.unfinished else "outdated"

    @property
    def closest(self) -> Check | None:
        """The check that decides the verdict; of several that which was learned and is nearest to its bound."""
        checks = self.verdict.checks if self.verdict else ()
        return min(checks, key=lambda x: (OUTCOMES.index(x.outcome), x.seeds is None, x.margin), default=None)

    @property
    def counts(self) -> str:
        """How many checks had each outcome."""
        outcomes = [check.outcome for check in self.verdict.checks] if self.verdict else []
        named = ((outcome, outcomes.count(outcome)) for outcome in reversed(OUTCOMES))
        return ", ".join(f"{count} of {len(outcomes)} checks {outcome}" for outcome, count in named if count)

    @property
    def image(self) -> str:
        return base64.b64encode(self.curve).decode()

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.record.results)

    @property
    def seeds(self) -> str:
        return ", ".join(map(str, sorted({int(result.cell["seed"]) for result in self.record.results})))

    def tables(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """Columns and rows of each kind of cells, a row for each point."""
        kinds: dict[tuple[str, ...], list[list[str]]] = {}
        for mean, spread in zip(self.means, spread_over_seeds(self.record.results), strict=True):
            numbers = {k: f"{x:.4g} ± {spread[k]:.2g}" if spread[k] else f"{x:.4g}" for k, x in mean.numbers.items()}
            row = {**mean.cell, **numbers}
            kinds.setdefault(tuple(row), []).append([str(x) for x in row.values()])
        return ((list(columns), rows) for columns, rows in kinds.items())


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
        beside.write_text(template.render(findings=findings, formulas=formulas), encoding="utf-8")
    for finding in (x for x in findings if x.curve):
        with replacing(path.with_name(f"{finding.anchor}.svg")) as beside:
            beside.write_bytes(finding.curve)


FOREIGN = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""What cells and numbers that an experiment does not have may raise anywhere in it."""


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
    outdated = record.code != digest(experiment)
    try:
        means = mean_over_seeds(record.results)
        finding = Finding(experiment, record, means, None, b"", outdated)
        list(finding.tables())
        return finding if finding.unfinished else concluded(finding)
    except FOREIGN as error:
        about = f"{experiment.name}.{record.size}: not the results of this experiment"
        raise DamagedError(f"{about} ({type(error).__name__}: {error}); remove the file to measure again") from error


def concluded(finding: Finding) -> Finding:
    """A finding with its verdict and curve; without them where other code measured what today's cannot judge."""
    experiment, means = finding.experiment, finding.means
    try:
        return replace(finding, verdict=experiment.verdict(means), curve=svg(experiment, means))
    except FOREIGN:
        if finding.outdated and means:
            return finding
        raise


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
