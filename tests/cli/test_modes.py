"""`rebracket modes`: a table of five ways that agree, an exit code where they do not, one line for bad input."""

import re
from pathlib import Path

import pytest

from rebracket.cli import main
from rebracket.cli import modes as verb
from rebracket.lm.modes import Difference, Measured
from tests.lm.writers import saved

TEXT = "a text of a few words, which is to be read in every way there is\n" * 4
NUMBER = r"[\d.,e+-]+"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder with a model and texts in it, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBRACKET_TRACEBACK", raising=False)
    saved(Path("hybrid"), "hybrid")
    Path("short.txt").write_text("no")
    Path("long.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Runs the command; gives exit code, table and complaints."""

    def called(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["modes", *arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return called


def test_the_ways_agree(run):
    code, shown, said = run("hybrid", "--text", "short.txt", "--text", "long.txt", "--tokens", "150")
    assert code == 0, said
    assert shown.startswith("long.txt: 150 tokens, 149 bytes, in float32\n")
    rows = re.findall(
        rf"(\w+) +│ +({NUMBER}) │ +({NUMBER}) │ +({NUMBER}) │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} MB", shown
    )
    assert [row[0] for row in rows] == ["parallel", "chunk", "recurrent", "step", "program"]
    assert [float(row[1]) == 0 for row in rows] == [True, False, False, False, False]
    assert all(float(row[2]) < 1e-4 for row in rows)
    assert len({row[3][:6] for row in rows}) == 1
    worst = max(float(row[2]) for row in rows)
    assert f"largest difference: {worst:.1e} standard deviations of the logits\n" in shown


def test_a_model_that_is_no_program_is_told(run, monkeypatch):
    monkeypatch.setattr("rebracket.lm.program.why_not", lambda _: "it has a part of its own")
    code, shown, _ = run("hybrid", "--text", "long.txt", "--tokens", "9")
    assert code == 0
    assert "no program: it has a part of its own\n" in shown
    assert "program " not in shown.partition("own\n")[2]


@pytest.mark.parametrize("far", [0.5, float("nan")])
def test_ways_that_disagree_are_told(run, monkeypatch, far):
    found = dict.fromkeys(("parallel", "chunk"), Measured(1.0, 1, 1.0))
    distances = {"parallel": Difference(0.0, 1.0), "chunk": Difference(far, 1.0)}
    monkeypatch.setattr(verb, "compare", lambda *_: (found, distances))
    code, shown, said = run("hybrid", "--text", "long.txt", "--tolerance", "0.25")
    assert code == 1
    assert "chunk" in shown
    assert said == "rebracket: the ways disagree by more than 0.25 standard deviations\n"
    assert run("hybrid", "--text", "long.txt", "--tolerance", "1")[0] == (1 if far != far else 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no model or run at nothing"),
        (["hybrid"], "hybrid is not in the folder of a run, so its training text is unknown; give --text"),
        (["hybrid", "--text", "nothing"], "no text at nothing"),
        (["hybrid", "--text", "void"], "text must not be empty"),
    ],
)
def test_errors_are_one_line(arguments, said, run):
    Path("void").touch()
    code, shown, line = run(*arguments)
    assert (code, shown) == (2, "")
    assert line.startswith(f"rebracket: {said}")
    assert line.count("\n") == 1
