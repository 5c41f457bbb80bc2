"""A file of results says what it is, and a damaged one says what to do."""

import json

import pytest

from rebracket.lab.base import Result, record
from rebracket.lab.base.record import Record, begin, digest, path_of, read, write
from tests.lab.planted import Planted

RECORD = Record("planted", "tiny", "abc", 2, "a machine", {"torch": "2"}, (Result({"n": 2}, {"mean": 0.5}, 0.1),))


def test_what_is_written_is_read(tmp_path):
    path = path_of(tmp_path, "planted", "tiny")
    write(path, RECORD)
    assert read(path) == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["planted.tiny.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("rebracket lab", "something"),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"numbers"', '"figures"'),
        lambda text: text.replace('"asked"', '"wanted"'),
        lambda text: json.dumps({**json.loads(text), "results": json.loads(text)["results"] * 2}),
    ],
    ids=["torn", "empty", "list", "bare", "kind", "format", "result", "field", "twice"],
)
def test_a_damaged_file_is_a_clear_error(tmp_path, damage):
    path = path_of(tmp_path, "planted", "tiny")
    write(path, RECORD)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"planted\.tiny\.json: expected the results.*remove it to measure anew"):
        read(path)


def test_only_results_of_the_same_code_are_gone_on_with(tmp_path):
    path, cells = path_of(tmp_path, "planted", "tiny"), Planted().cells("tiny")
    write(path, RECORD)
    assert begin(path, Planted(), "tiny", cells).results == ()
    fresh = begin(tmp_path / "none.json", Planted(), "tiny", cells)
    write(path, fresh.adding(RECORD.results[0]))
    assert begin(path, Planted(), "tiny", cells).results == RECORD.results


def test_the_digest_follows_the_library_and_leaves_commands_out(tmp_path, monkeypatch):
    for name in ("ops/attention.py", "lab/other.py", "lab/base/grid.py", "cli/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(record, "PACKAGE", tmp_path)

    def changed(name: str) -> bool:
        before = digest(Planted())
        (tmp_path / name).write_text("two")
        return digest(Planted()) != before

    assert [changed(name) for name in ("ops/attention.py", "lab/base/grid.py")] == [True, True]
    assert [changed(name) for name in ("lab/other.py", "cli/train.py")] == [False, False]
