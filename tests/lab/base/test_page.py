"""The page holds everything itself: verdicts, curves, tables; what is unfinished is said to be."""

import re
import sys

import pytest

from rebracket.lab.base.page import write_page
from rebracket.lab.base.record import path_of, read
from rebracket.lab.base.running import Order, run
from tests.lab.planted import Planted


@pytest.fixture
def found(tmp_path):
    run([Planted()], Order("tiny", tmp_path), lambda progress: None)
    return read(path_of(tmp_path, "planted", "tiny"))


def page(tmp_path, *found) -> str:
    write_page(tmp_path / "report.html", found)
    return (tmp_path / "report.html").read_text()


def test_a_page_shows_question_claim_verdict_curve_and_table(tmp_path, found):
    pytest.importorskip("matplotlib")
    shown = page(tmp_path, (Planted(), found), (Planted(most=-5), found))
    assert "Is the mean &lt;small&gt;?" in shown
    assert "It is &amp; stays so." in shown
    assert re.findall(r"<strong>(\w+):</strong>", shown) == ["Held", "Refuted"]
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert shown.count("<tr><td>3</td>") == 2
    assert not re.search(r"(src|href)=\"(?!data:)", shown)


def test_an_unfinished_one_is_said_to_be(tmp_path, found):
    from dataclasses import replace

    shown = page(tmp_path, (Planted(), replace(found, results=found.results[:1])))
    assert "1 of 2 cells are measured" in shown
    assert "Held" not in shown


def test_without_matplotlib_the_extra_is_named(tmp_path, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"rebracket\[plots\]"):
        page(tmp_path, (Planted(), found))
