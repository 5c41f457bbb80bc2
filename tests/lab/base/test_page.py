"""The page holds everything itself: verdicts, curves, tables; what is unfinished is said to be."""

import html
import json
import re
import shutil
import subprocess
import sys

import pytest

from rebracket.lab.base.page import write_page
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
    assert re.findall(r"<b>(\w+)</b></td>", shown) == ["Held", "Refuted"]
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert shown.count("<tr><td>3</td>") == 2
    assert not re.search(r"(src|href)=\"(?!data:|#planted-tiny)", shown)


def test_a_table_has_the_spread_over_seeds_and_every_curve_lies_beside_the_page(tmp_path, found):
    pytest.importorskip("matplotlib")
    page(tmp_path, (Planted(), found))
    assert (tmp_path / "planted-tiny.svg").read_text().startswith("<?xml")
    run([Planted()], "tiny", tmp_path, lambda progress: None, seeds=2)
    shown = page(tmp_path, (Planted(), read(path_of(tmp_path, "planted", "tiny"))))
    assert len(re.findall(r"<td>-?[\d.]+ ± [\d.]+</td>", shown)) == 2


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
    assert len(seen["tables"]) == 3
    assert all(side > 50 for sides in (*seen["images"], *seen["tables"]) for side in sides), seen
    assert seen["over"] <= 0  # nothing to scroll to at the side
    assert seen["fetched"] == []
