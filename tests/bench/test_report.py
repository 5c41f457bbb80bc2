"""What is written: a page whose tables are whole, figures that can be read again, and a plot where it can be drawn."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from rebracket.bench import report, tables
from rebracket.bench.benchmark import Row
from tests.bench.test_tables import RESULT, row


def swept(rule: str, microseconds: Callable[[int], float]) -> list[Row]:
    return [row("auto", rule, (1, T, 8, 64), microseconds(T) / 1e6) for T in (64, 128)]


SOFTMAX = swept("softmax", lambda T: T * T)
SWEEP = [*swept("kda", lambda T: T), *SOFTMAX]
SWEPT = replace(RESULT, sweep=SWEEP)


def blocks(page: str) -> list[list[str]]:
    """The tables of a page, each a list of its lines."""
    return [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]


def test_a_page_has_every_table_and_says_how_it_was_made():
    page = report.page(SWEPT, "rebracket bench --peers", "plot.svg")
    assert page.startswith("# Performance\n")
    for line in ("rebracket bench --peers\n", "![Time against T](plot.svg)", "- peer three: not today (2 cases)"):
        assert line in page
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == [
        *(f"## {table.title}" for table in tables.tables(SWEPT)),
        "## Time against T",
        "## Not timed",
    ]
    assert "| KDA | cpu | 2 ms ±0% 0.50 | 4 ms ±0% 0.25 |" in page


def test_every_row_of_a_table_has_the_cells_of_its_head():
    found = blocks(report.page(SWEPT, "command", None))
    assert len(found) == len(list(tables.tables(SWEPT)))
    for lines in found:
        assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_what_every_operator_has_to_say_is_there_once():
    page = report.page(replace(RESULT, rows=[*RESULT.rows, row("cpu", "convolution", (1, 8, 4), 0.1)]), "command", None)
    for words in ("6 D^2 for a rule that", "a width of 4, SiLU and no bias"):
        assert " ".join(page.split()).count(words) == 1
    assert max(map(len, report.reading(RESULT).splitlines())) <= 120


def test_figures_hold_every_row(tmp_path):
    report.write(SWEPT, tmp_path / "out", "command")
    found = json.loads((tmp_path / "out" / report.FIGURES).read_text())
    assert found["command"] == "command"
    assert [limits["threads"] for limits in found["limits"]] == [1, 2]
    assert len(found["rows"]) == len(RESULT.rows)
    first = found["rows"][0]
    assert (first["rule"], first["shape"], first["mode"], first["dtype"]) == ("kda", "1x8x2x4", "forward", "float32")
    assert (first["implementation"], first["status"], first["is_peer"], first["seconds"]) == (
        "cpu",
        "timed",
        False,
        0.002,
    )
    assert first["low"] <= first["seconds"] <= first["high"]
    assert len(first["samples"]) == 5
    assert first["functions"] == 302
    assert found["rows"][3]["reason"] == "about 31 s a call, over 8 s"
    assert len(found["sweep"]) == len(SWEEP)
    assert "torch" in found["versions"]


def test_the_plot_marks_the_crossing(tmp_path):
    pytest.importorskip("matplotlib")
    report.write(replace(SWEPT, sweep=[*swept("kda", lambda T: 100 * T), *SOFTMAX]), tmp_path, "command")
    plot = (tmp_path / report.PLOT).read_text()
    assert "KDA, from T = 100<" in plot
    assert ">softmax<" in plot
    assert "Forward, 8 heads of 64" in plot
    assert report.PLOT in (tmp_path / report.PAGE).read_text()


@pytest.mark.parametrize("why", ["no sweep", "no matplotlib"])
def test_without_a_plot_the_page_shows_none(tmp_path, monkeypatch, why):
    if why == "no matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    report.write(RESULT if why == "no sweep" else SWEPT, tmp_path, "command")
    assert not (tmp_path / report.PLOT).exists()
    assert report.PLOT not in (tmp_path / report.PAGE).read_text()


def test_the_machine_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "PROCESSORS", tmp_path / "cpuinfo")
    assert "torch" in report.machine()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 3000\n")
    assert report.machine().startswith("Abacus 3000 (")
