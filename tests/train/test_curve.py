"""The curve: a picture of every step, every validation and the result."""

import sys

import pytest

from rebracket.train.curve import draw, plot, points

RECORDS = [
    {"kind": "start", "step": 0},
    *({"kind": "train", "step": step, "bits_per_byte": 8 / step} for step in range(1, 101)),
    {"kind": "validation", "step": 50, "bits_per_byte": 0.3},
    {"kind": "result", "step": 100, "bits_per_byte": 0.2, "xz_alone": 1.8, "xz_after": 1.2},
]


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(RECORDS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_it_shows_every_step_and_what_the_run_is_compared_with():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    plot(RECORDS, axes)
    shown = {str(line.get_label()): line.get_xydata().tolist() for line in axes.get_lines()}
    assert shown["training, each step"] == [[step, 8 / step] for step in range(1, 101)]
    assert shown["held out"] == [[50, 0.3], [100, 0.2]]
    assert [y for _, y in shown["xz alone, 1.80"]] == [1.8, 1.8]
    assert [y for _, y in shown["xz after training text, 1.20"]] == [1.2, 1.2]


def test_without_matplotlib_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw(RECORDS, tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_points_are_those_of_the_kinds_asked_for():
    assert points(RECORDS, "validation", "result") == ([50, 100], [0.3, 0.2])
