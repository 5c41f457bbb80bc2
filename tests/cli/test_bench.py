"""`rebracket bench`: tables of right results, a wrong one shown and not timed, one line for bad input."""

import json
import re
from pathlib import Path

import pytest

from rebracket.bench import peers, suite
from rebracket.cli import main
from tests.bench.planted import FAULTS, Failing, Planted, Refusing, measure_little

TINY = ("--shapes", "1x6x2x4,3x6x2x4,2x1x3x4", "--rules", "linear,kda,softmax", "--rounds", "1", "--seconds", "0")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder to write into, which is the current one, and a machine that is soon measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBRACKET_TRACEBACK", raising=False)
    measure_little(monkeypatch)


@pytest.fixture
def run(capsys):
    """Runs the command; gives exit code, tables and complaints."""

    def called(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["bench", *arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return called


def cells(shown: str, name: str) -> list[list[str]]:
    """The cells behind a name, of every line that has it."""
    lines = [[cell.strip() for cell in re.split("[│┃]", line)] for line in shown.splitlines()]
    return [line[line.index(name) + 1 : -1] for line in lines if name in line]


def test_the_tables(run):
    code, shown, _ = run(*TINY, "--no-plot")
    assert code == 0
    for title in ("Limits of the machine", "Forward, 1 thread", "Forward and backward, 1 thread", "Decode, one token"):
        assert title in shown
    timed = [line for line in cells(shown, "reference") if any("s " in cell for cell in line)]
    assert len(timed) == 6
    assert all(re.fullmatch(r"[\d.]+ m?u?s \d+\.\d\dx?", cell) for line in timed for cell in line)
    assert "WRONG" not in shown
    assert "Faster than softmax" not in shown
    assert "peer" not in shown


def test_what_is_written(run):
    code, shown, _ = run("--quick", "--rules", "kda", "--modes", "forward", "--seconds", "0", "--out", "made")
    assert code == 0
    assert shown.endswith("page: made/performance.md\n")
    assert "# Performance" in Path("made/performance.md").read_text()
    assert json.loads(Path("made/performance.json").read_text())["rows"]
    assert "Faster than softmax from T" in shown


def test_the_convolution_is_among_the_rules_and_not_among_shapes_of_attention(run):
    code, shown, _ = run("--quick", "--rules", "convolution", "--seconds", "0", "--out", "made")
    assert code == 0
    assert "Short convolution, 1 thread" in shown
    assert "Forward, 1 thread" not in shown
    assert len(cells(shown, "torch conv1d")) == 7  # times in 3 modes, memory in 2, functions, error
    figures = json.loads(Path("made/performance.json").read_text())
    assert figures["sweep"] == []
    assert {(row["rule"], row["status"]) for row in figures["rows"]} == {
        ("convolution", "timed"),
        ("convolution", "yardstick"),
    }
    assert "Short convolution" not in run(*TINY, "--no-plot", "--modes", "decode")[1]
    code, shown, _ = run("--rules", "kda,convolution", "--shapes", "2x6x4", "--no-plot", "--seconds", "0")
    assert "Short convolution, 1 thread" in shown
    assert "KDA" not in shown
    assert "Short convolution" not in run("--quick", "--rules", "kda", "--modes", "decode", "--seconds", "0")[1]


def test_a_wrong_convolution_of_ours_is_an_exit_code(run, monkeypatch):
    monkeypatch.setattr(suite, "Backend", lambda name: Planted(name, FAULTS["another head"], is_peer=False))
    code, shown, _ = run("--quick", "--rules", "convolution", "--modes", "forward", "--seconds", "0")
    assert code == 1
    assert "WRONG" in shown
    assert re.search("(out|tail) is off by", shown)
    assert cells(shown, "torch conv1d")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_peer_is_shown_and_not_timed(run, monkeypatch, fault):
    wrong = Planted("the wrong one", fault)
    monkeypatch.setattr(peers, "found", lambda: (wrong, Planted("the right one"), Refusing(), Failing()))
    code, shown, _ = run(*TINY, "--no-plot", "--peers", "--modes", "train,decode")
    assert code == 0
    times = [line for line in cells(shown, "the wrong one") if "WRONG" in line]
    assert len(times) == 5
    assert all(cell in ("WRONG", "–") for line in times for cell in line)
    assert "the wrong one: wrong: " in shown
    assert "refusing: not today (8 cases)\n" in shown
    assert "failing: failed: RuntimeError: out of order (8 cases)\n" in shown
    beside = [line for line in cells(shown, "fastest peer / ours") for cell in line if cell.endswith("the right one")]
    assert len(beside) == 8


def test_a_wrong_result_of_ours_is_an_exit_code(run, monkeypatch):
    monkeypatch.setattr(suite, "Backend", lambda name: Planted(name, FAULTS["slightly off"], is_peer=False))
    code, shown, _ = run(*TINY, "--no-plot", "--modes", "forward")
    assert code == 1
    assert "WRONG" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rules", "linear,rwkv4"], "--rules must be of linear, simple_gla"),
        (["--modes", "backward"], "--modes must be of forward, train, decode, got 'backward'"),
        (["--shapes", "1x2"], "a shape is BxTxHxD or BxTxD, such as 1x4096x8x64, got '1x2'"),
        (["--shapes", "1x2x3x4x5"], "a shape is BxTxHxD or BxTxD"),
        (["--shapes", "1x0x3x4"], "a shape is BxTxHxD or BxTxD"),
        (["--shapes", "axbxcxd"], "a shape is BxTxHxD or BxTxD"),
        (["--shapes", "1X2x3x4"], "a shape is BxTxHxD or BxTxD"),
        (["--threads", "1,0"], "--threads must be counts in [1, "),
        (["--threads", "200000"], "--threads must be counts in [1, "),
        (["--dtype", "float8"], "--dtype must be of float32, bfloat16, got 'float8'"),
        (["--modes", "decode", "--shapes", "1x2x3x4"], "nothing to benchmark: decode needs shapes with T = 1"),
        (["--rules", "convolution", "--shapes", "1x2x3x4"], "nothing to benchmark"),
    ],
)
def test_errors_are_one_line(run, arguments, said):
    code, shown, line = run(*arguments)
    assert (code, shown) == (2, "")
    assert line.startswith(f"rebracket: {said}")
    assert line.count("\n") == 1
