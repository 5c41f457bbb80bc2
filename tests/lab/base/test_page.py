"""The page holds everything itself: verdicts, curves, tables; what is unfinished is said to be."""

import html
import json
import re
import shutil
import subprocess
import sys

import pytest

from rebracket.lab.base.page import formulas, write_page
from rebracket.lab.base.record import path_of, read
from rebracket.lab.base.running import run
from tests.lab.planted import Planted


@pytest.fixture
def found(tmp_path):
    run([Planted()], "tiny", tmp_path, lambda progress: None)
    return read(path_of(tmp_path, "planted", "tiny"))


def page(tmp_path, *found) -> str:
    write_page(tmp_path / "report.html", found)
    return (tmp_path / "report.html").read_text()


def test_a_page_shows_question_claim_verdict_curve_and_table(tmp_path, found):
    pytest.importorskip("matplotlib")
    shown = page(tmp_path, (Planted(), found), (Planted(most=-5), found))
    assert "Is the mean &lt;small&gt;?" in shown
    assert "It is &amp; stays so." in shown
    assert re.findall(r"<b>(\w+):</b>", shown) == ["Held", "Refuted"]
    assert re.findall(r"<b>(\w+)</b></td>", shown) == ["Held", "Refuted", "held", "refuted"]
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert shown.count("<tr><td>3</td>") == 2
    assert "Measured by other code" not in shown
    assert not re.search(r"(src|href)=\"(?!data:|#planted-tiny)", shown)


def test_a_table_has_the_spread_over_seeds_and_every_curve_lies_beside_the_page(tmp_path, found):
    pytest.importorskip("matplotlib")
    page(tmp_path, (Planted(), found))
    assert (tmp_path / "planted-tiny.svg").read_text().startswith("<?xml")
    run([Planted()], "tiny", tmp_path, lambda progress: None, seeds=2)
    shown = page(tmp_path, (Planted(), read(path_of(tmp_path, "planted", "tiny"))))
    assert len(re.findall(r"<td>-?[\d.]+ ± [\d.]+</td>", shown)) == 2


def test_checks_are_a_table_with_what_was_found_its_error_bound_seeds_and_source(tmp_path):
    pytest.importorskip("matplotlib")
    run([Planted()], "quick", tmp_path, lambda progress: None)
    shown = page(tmp_path, (Planted(most=0.7, learned=True), read(path_of(tmp_path, "planted", "quick"))))
    assert re.findall(r"<b>(\w+):</b> (1 of 1 checks open)", shown) == [("Open", "1 of 1 checks open")]
    assert re.search(r"<td><b>open</b></td><td>largest mean</td><td></td><td>[\d.]+ ± [\d.]+</td>", shown)
    assert '<td>at most 0.7</td><td>3</td><td class="source">made up</td>' in shown
    assert "6 cells at seeds 0, 1, 2" not in shown
    assert "9 cells at seeds 0, 1, 2" in shown


def test_what_other_code_measured_is_said_and_what_it_cannot_judge_is_a_table_alone(tmp_path, found):
    from dataclasses import replace

    pytest.importorskip("matplotlib")
    old = replace(found, code="other", commit="abc1234", date="2026-01-02")
    shown = page(tmp_path, (Planted(), old))
    assert "<b>Measured by other code</b> than what draws this page." in shown
    assert "commit abc1234" in shown
    assert "2026-01-02" in shown
    strange = replace(old, results=tuple(replace(r, numbers={"median": 7.5}) for r in old.results))
    shown = page(tmp_path, (Planted(), strange))
    assert "so it is not judged." in shown
    assert "<td>7.5</td>" in shown
    assert "data:image" not in shown


def test_formulas_are_written_as_by_hand_and_names_are_left():
    assert formulas("a^2 of x_t in linear_transformer, <i>, g^(2 a), e^1/2") == (
        "a<sup>2</sup> of x<sub>t</sub> in linear_transformer, &lt;i&gt;, g<sup>2 a</sup>, e<sup>1/2</sup>"
    )


def test_an_unfinished_one_is_said_to_be(tmp_path, found):
    from dataclasses import replace

    shown = page(tmp_path, (Planted(), replace(found, results=found.results[:1])))
    assert "1 of 2 cells are measured" in shown
    assert "Held" not in shown


def test_results_of_other_cells_are_left_out_and_nothing_reaches_the_page_unescaped(tmp_path, found):
    from dataclasses import replace

    pytest.importorskip("matplotlib")
    experiment, record = Planted(), found
    one = record.results[0]
    others = {
        "other numbers": [replace(one, numbers={"<i>other</i>": 1.0})],
        "numbers missing": [replace(one, numbers={}), *record.results[1:]],
        "no results": [],
    }
    for results in others.values():
        said = []
        bad = replace(record, asked=len(results), results=tuple(results))
        write_page(tmp_path / "page.html", [(experiment, record), (experiment, bad)], said.append)
        assert len(said) == 1
        assert said[0].startswith("left out: planted.tiny: not the results of this experiment")
        assert "<i>" not in (tmp_path / "page.html").read_text()
        with pytest.raises(ValueError, match="no results that can be shown"):
            write_page(tmp_path / "page.html", [(experiment, bad)], said.append)
    marked = replace(record, machine="<script>alert(1)</script>")
    write_page(tmp_path / "page.html", [(experiment, marked)])
    assert "<script>" not in (tmp_path / "page.html").read_text()


def test_without_matplotlib_the_extra_is_named(tmp_path, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"rebracket\[plots\]"):
        page(tmp_path, (Planted(), found))


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --dump-dom"
MEASURED = """<script>onload = () => {
  document.querySelectorAll("details").forEach(x => x.open = true)
  const sides = x => { const box = x.getBoundingClientRect(); return [box.width, box.height] }
  document.body.innerHTML = "<pre>" + JSON.stringify({
    images: [...document.images].map(x => [x.naturalWidth, ...sides(x)]),
    tables: [...document.querySelectorAll("table")].map(sides),
    over: document.documentElement.scrollWidth - innerWidth,
    fetched: performance.getEntriesByType("resource").map(x => x.name).filter(x => !x.startsWith("data:")),
  }) + "</pre>" }</script>"""


def laid_out(tmp_path, width: int) -> dict:
    """The page as a browser without a network shows it."""
    measured = tmp_path / "measured.html"
    measured.write_text((tmp_path / "report.html").read_text() + MEASURED)
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(BROWSER), *QUIET.split(), *offline, f"--window-size={width},900", measured.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(html.unescape(shown.split("<pre>")[1].split("</pre>")[0]))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("width", [1200, 500])
def test_a_browser_lays_out_every_curve_and_table(tmp_path, found, width):
    pytest.importorskip("matplotlib")
    page(tmp_path, (Planted(), found), (Planted(most=-5), found))
    seen = laid_out(tmp_path, width)
    assert len(seen["images"]) == 2
    assert len(seen["tables"]) == 5
    assert all(side > 50 for sides in (*seen["images"], *seen["tables"]) for side in sides), seen
    assert seen["over"] <= 0  # nothing to scroll to at the side
    assert seen["fetched"] == []
