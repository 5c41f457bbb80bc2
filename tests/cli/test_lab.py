"""`rebracket lab`: verdicts and an exit code, a run that resumes, a page, one line for bad input."""

import json
import re
import signal

import pytest

from rebracket import lab
from rebracket.cli import lab as verb
from rebracket.cli import main
from tests.lab.planted import Planted


@pytest.fixture(autouse=True)
def planted(monkeypatch, tmp_path):
    """The planted experiment is the only one."""
    monkeypatch.setattr(lab, "names", lambda: ("planted",))
    monkeypatch.setattr(lab, "load", lambda name: Planted())
    monkeypatch.delenv("REBRACKET_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    """Runs the command; gives exit code, output and complaints."""

    def called(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["lab", *arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return called


def test_list_names_and_asks(run):
    assert run("list") == (0, "planted      Is the mean <small>?\n", "")


def test_run_says_whether_the_claim_held_and_report_writes_the_page(run, tmp_path):
    pytest.importorskip("matplotlib")
    code, shown, said = run("run", "all", "--workers", "1")
    assert (code, "held" in shown, "largest mean" in shown) == (0, True, True), said
    assert re.search(r"^9/9, [\d.,]+/s, 0:00:00 left: planted, n 5, seed 2$", said, re.MULTILINE)
    code, shown, said = run("report")
    assert (code, shown, said) == (0, "page: runs/lab/report.html\n", "")
    assert "Held" in (tmp_path / "runs/lab/report.html").read_text()


def test_a_report_names_damaged_results_and_leaves_them_out(run, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "results"
    run("run", "all", "--workers", "1", "--out", str(out))
    (out / "torn.quick.json").write_text("{")
    code, _, error = run("report", "--out", str(out))
    assert code == 0
    assert error.startswith("left out: torn.quick.json: ")
    assert error.count("\n") == 1


def test_a_refuted_claim_is_exit_code_1(run, monkeypatch):
    monkeypatch.setattr(lab, "load", lambda name: Planted(most=-5))
    code, shown, _ = run("run", "planted", "--seeds", "1", "--workers", "1")
    assert code == 1
    assert "REFUTED" in shown


def test_an_open_claim_is_exit_code_3_and_a_refuted_one_weighs_more(run, monkeypatch):
    monkeypatch.setattr(lab, "load", lambda name: Planted(most=0.7, learned=True))
    code, shown, _ = run("run", "planted", "--workers", "1")
    assert code == 3
    assert "OPEN" in shown
    assert "over 3 seeds" in shown
    monkeypatch.setattr(lab, "names", lambda: ("planted", "other"))
    monkeypatch.setattr(lab, "load", lambda name: Planted(most=0.7 if name == "planted" else -5.0, learned=True))
    assert run("run", "all", "--workers", "1")[0] == 1


def test_the_help_says_what_the_exit_codes_mean(run):
    _, shown, _ = run("run", "--help")
    assert re.search(r"Exit\s+code\s+1:\s+a\s+claim\s+was\s+refuted.\s+3:\s+none\s+was,\s+but\s+one\s+is\s+open", shown)


def test_the_first_seed_is_kept_in_the_file(run, tmp_path):
    run("run", "all", "--seeds", "2", "--first-seed", "40", "--workers", "1")
    kept = json.loads((tmp_path / "runs/lab/planted.quick.json").read_text())
    assert {result["cell"]["seed"] for result in kept["results"]} == {40, 41}
    assert run("run", "all", "--first-seed", "-1")[0] == 2


def test_ctrl_c_says_how_to_resume(run, monkeypatch):
    monkeypatch.setattr(verb, "said", lambda _: signal.raise_signal(signal.SIGINT))
    code, shown, _ = run("run", "all", "--workers", "1")
    assert code == 130
    assert shown.startswith("stopped, 8 cells are left; to go on: rebracket")


def test_a_folder_without_results_is_one_line(run):
    code, _, said = run("report", "--out", "none")
    assert (code, said) == (2, "rebracket: --out: no results in none; make some with rebracket lab run all\n")


@pytest.mark.parametrize("workers", ["many", "-1", "0"])
def test_workers_are_a_number_or_ray(run, workers):
    code, _, said = run("run", "all", "--workers", workers)
    assert code == 2
    assert "workers must be" in said
