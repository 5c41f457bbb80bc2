"""A file of results says what it is, and a damaged one says what to do."""

import importlib.metadata
import inspect
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rebracket.lab import load
from rebracket.lab.base import record
from rebracket.lab.base.experiment import Result
from rebracket.lab.base.page import judged
from rebracket.lab.base.record import Record, digest, path_of, python_code, read, resume, write
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
        lambda text: "[" * 10_000 + "]" * 10_000,
        lambda text: text.replace('"tiny"', '"<b>../../tiny</b>"'),
        lambda text: text.replace('"planted"', "7"),
        lambda text: text.replace('"a machine"', '"\\ud800"'),
        lambda text: text.replace("0.5", '"<script>"'),
        lambda text: text.replace("0.5", "9" * 400),
        lambda text: text.replace("0.1", "[]"),
        lambda text: text.replace('"n": 2', '"n": [2]'),
        lambda text: json.dumps({**json.loads(text), "results": [[]]}),
        lambda text: json.dumps({**json.loads(text), "asked": "2"}),
    ],
    ids=[
        *("torn", "empty", "list", "bare", "kind", "format", "result", "field", "twice", "deep", "size", "name"),
        *("surrogate", "text", "huge", "seconds", "cell", "row", "asked"),
    ],
)
def test_a_damaged_file_is_a_clear_error(tmp_path, damage):
    path = path_of(tmp_path, "planted", "tiny")
    write(path, RECORD)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"planted\.tiny\.json: expected the results.*remove it to measure again"):
        read(path)


def test_only_results_of_the_same_code_are_resumed(tmp_path):
    path, cells = path_of(tmp_path, "planted", "tiny"), Planted().cells("tiny")
    write(path, RECORD)
    assert resume(path, Planted(), "tiny", cells).results == ()
    fresh = resume(tmp_path / "none.json", Planted(), "tiny", cells)
    write(path, fresh.adding(RECORD.results[0]))
    assert resume(path, Planted(), "tiny", cells).results == RECORD.results


SOURCE = '"""A module."""\n\nSIZE = 3\n"""Of it."""\n\n\ndef f(x):\n    """Doubles."""\n    return 2 * x  # twice\n'
KERNEL = 'float f(float x) { return 2 * x; } // twice\nconst char* s = "a // b";  /* a\nname */\n'


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Whether the digest of an experiment changes when a text in a file of the package does."""
    monkeypatch.setattr(record, "PACKAGE", tmp_path)
    for name in (
        "ops/attention.py",
        "lab/other.py",
        "lab/base/verdict.py",
        "lab/base/page.py",
        "cli/train.py",
        "backends/cpu/csrc/f.cpp",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(KERNEL if name.endswith(".cpp") else SOURCE)

    def changed(name: str, old: str, new: str) -> bool:
        text, before = (tmp_path / name).read_text(), digest(Planted())
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new))
        return digest(Planted()) != before

    return changed


def test_the_digest_follows_the_library_and_leaves_commands_out(changed):
    follows = ("ops/attention.py", "lab/base/verdict.py", "backends/cpu/csrc/f.cpp")
    assert [changed(name, "2 * x", "3 * x") for name in follows] == [True, True, True]
    assert [changed(name, "2 * x", "3 * x") for name in ("lab/other.py", "cli/train.py")] == [False, False]
    assert not changed("lab/base/page.py", "2 * x", "3 * x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A module", "The module"),
        ("Of it", "How large"),
        ("Doubles", "Twice x"),
        ("# twice", "# 2 x"),
        ("\n\n\n", "\n"),
    ],
    ids=["module", "constant", "function", "comment", "layout"],
)
def test_words_of_python_keep_results(changed, old, new):
    assert not changed("ops/attention.py", old, new)


@pytest.mark.parametrize(("old", "new"), [("SIZE = 3", "SIZE = 4"), ("def f(x)", "def f(x, y=0)"), ("f(x)", "g(x)")])
def test_code_of_python_discards_results(changed, old, new):
    assert changed("ops/attention.py", old, new)


def test_comments_of_a_kernel_keep_results_and_its_strings_do_not(changed):
    assert not changed("backends/cpu/csrc/f.cpp", "// twice", "// 2 x")
    assert not changed("backends/cpu/csrc/f.cpp", " // 2 x\n", "\n\n")
    assert not changed("backends/cpu/csrc/f.cpp", "a\nname", "another name")
    assert changed("backends/cpu/csrc/f.cpp", "// b", "// c")


def test_the_texts_of_an_experiment_keep_results_and_its_bounds_do_not():
    source = Path(inspect.getfile(Planted)).read_text()
    assert python_code(source.replace("It is & stays so.", "It stays so.")) == python_code(source)
    assert python_code(source.replace("most: float = 5.0", "most: float = 6.0")) != python_code(source)
    assert python_code(source.replace("axes.plot(", "axes.scatter(")) == python_code(source)
    weights = "def draw_rates(A_log, low):\n    return A_log * low\n"
    assert python_code(weights.replace("* low", "+ low")) != python_code(weights)  # what draws numbers counts


def test_a_file_says_commit_and_date_and_one_from_before_they_were_kept_is_read(tmp_path):
    fresh = resume(tmp_path / "none.json", Planted(), "tiny", [])
    assert fresh.commit in (record.commit(), importlib.metadata.version("rebracket"))
    assert fresh.date.count("-") == 2
    path = path_of(tmp_path, "planted", "tiny")
    write(path, RECORD)
    bare = {name: x for name, x in json.loads(path.read_text()).items() if name not in ("commit", "date")}
    path.write_text(json.dumps(bare))
    assert (read(path).commit, read(path).date) == ("", "")


def test_the_commit_is_that_of_the_tree_that_holds_the_package(tmp_path, monkeypatch):
    git = shutil.which("git") or pytest.skip("no git")
    package = tmp_path / "tree" / "rebracket"
    package.mkdir(parents=True)
    monkeypatch.setattr(record, "PACKAGE", package)
    assert record.commit.__wrapped__() == importlib.metadata.version("rebracket")
    (package / "a.py").write_text("1")
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run([git, *words], cwd=package.parent, check=True)
    found = subprocess.run([git, "rev-parse", "HEAD"], cwd=package.parent, check=True, capture_output=True, text=True)
    assert record.commit.__wrapped__() == found.stdout[:12]
    (package / "a.py").write_text("2")
    assert record.commit.__wrapped__() == f"{found.stdout[:12]}-dirty"


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[3] / "docs/lab").glob("*.json")), ids=lambda x: x.name)
def test_the_results_in_the_docs_are_read_and_judged_or_said_to_be_of_other_code(path):
    found = read(path)
    assert len(found.results) == found.asked
    finding = judged(load(found.experiment), found)
    assert finding.verdict or finding.outdated
