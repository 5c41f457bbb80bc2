"""The curve: a picture, or characters that say the same."""

import builtins

import pytest

from rebracket.train.curve import Curve, bars, columns, draw, text

CURVE = Curve([(step, 8 / step) for step in range(1, 101)], [(50, 0.3), (100, 0.2)], {"xz alone": 1.8, "xz after": 1.2})


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = draw(CURVE, tmp_path)
    assert path == tmp_path / "curve.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_without_matplotlib_it_is_text(tmp_path, monkeypatch):
    real = builtins.__import__

    def forbidden(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", forbidden)
    path = draw(CURVE, tmp_path)
    assert path == tmp_path / "curve.txt"
    assert path.read_text() == text(CURVE) + "\n"


def test_text_falls_with_the_loss():
    rows = text(CURVE, width=20, height=5).splitlines()
    assert len(rows) == 6
    assert [len(row) for row in rows[:-1]] == sorted(len(row) for row in rows[:-1])
    assert rows[-1].endswith("steps 1 to 100, bits per byte")
    assert all(len(row) <= 7 + 20 for row in rows[:-1])


def test_columns_are_means_of_all_values():
    assert columns([1, 2, 3, 4], 2) == [1.5, 3.5]
    assert columns([1, 2], 10) == [1, 2]
    means = columns(list(range(1000)), 7)
    assert len(means) == 7
    assert means == sorted(means)


def test_bars_are_in_eighths():
    assert bars([0.0, 0.5, 1.0, 1.5], 0, 1.0) == " ▄██"
    assert bars([0.0, 0.5, 1.0, 1.5], 1, 1.0) == "   ▄"


def test_it_is_read_from_records():
    records = [
        {"kind": "start", "step": 0},
        {"kind": "train", "step": 1, "bits_per_byte": 3.0},
        {"kind": "validation", "step": 1, "bits_per_byte": 2.0},
        {"kind": "result", "step": 2, "bits_per_byte": 1.0},
    ]
    curve = Curve.of(records, {"xz": 1.5}).ending(2, 1.0)
    assert curve == Curve([(1, 3.0)], [(1, 2.0), (2, 1.0)], {"xz": 1.5})
