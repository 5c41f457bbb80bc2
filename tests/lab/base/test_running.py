"""A run is the same whole or resumed, in one process or several, and measures what changed and nothing else."""

import os
import signal
from pathlib import Path

import pytest

from rebracket.lab.base import record, running
from rebracket.lab.base.experiment import Size
from rebracket.lab.base.running import Job, Progress, run
from tests.lab import planted
from tests.lab.planted import MEASURED, Planted


@pytest.fixture(autouse=True)
def count():
    MEASURED.clear()


def quiet(progress: Progress) -> None: ...


def numbers(folder: Path, size: Size = "quick") -> dict[str, float]:
    """The numbers in a file by their cells."""
    found = record.read(record.path_of(folder, "planted", size))
    return {record.key(result.cell): result["mean"] for result in found.results}


def stopping(after: int):
    """Presses Ctrl-C once some cells are done."""
    return lambda progress: signal.raise_signal(signal.SIGINT) if progress.done == after else None


def test_a_run_measures_every_cell_and_keeps_it(tmp_path):
    (outcome,) = run([Planted()], "quick", tmp_path, quiet)
    assert outcome.is_complete
    assert [dict(result.cell) for result in outcome.results] == Planted().cells("quick") == MEASURED
    assert len(numbers(tmp_path)) == 9


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_equals_one_never_stopped(tmp_path, after):
    (outcome,) = run([Planted()], "quick", tmp_path / "two", stopping(after))
    assert len(outcome.results) == after < outcome.asked
    assert not outcome.is_complete
    assert len(numbers(tmp_path / "two")) == after
    (outcome,) = run([Planted()], "quick", tmp_path / "two", quiet)
    assert outcome.is_complete
    assert Planted().cells("quick") == MEASURED  # none twice
    run([Planted()], "quick", tmp_path / "one", quiet)
    assert numbers(tmp_path / "two") == numbers(tmp_path / "one")


def test_more_seeds_add_cells_and_fewer_lose_none(tmp_path):
    run([Planted()], "tiny", tmp_path, quiet, seeds=1)
    run([Planted()], "tiny", tmp_path, quiet, seeds=3)
    assert len(MEASURED) == 6
    (outcome,) = run([Planted()], "tiny", tmp_path, quiet, seeds=2)
    assert len(MEASURED) == 6
    assert outcome.asked == len(outcome.results) == 4
    assert len(numbers(tmp_path, "tiny")) == 6


def test_a_changed_parameter_is_measured_and_the_rest_is_not(tmp_path, monkeypatch):
    run([Planted()], "tiny", tmp_path, quiet)
    monkeypatch.setattr(Planted, "grid", lambda self, size: [{"n": 3}, {"n": 4}])
    (outcome,) = run([Planted()], "tiny", tmp_path, quiet)
    assert MEASURED[2:] == [{"n": 4, "seed": 0}]
    assert [result.cell["n"] for result in outcome.results] == [3, 4]


def test_changed_code_measures_everything_anew(tmp_path, monkeypatch):
    run([Planted()], "tiny", tmp_path, quiet)
    monkeypatch.setattr(record, "digest", lambda experiment: "other")
    run([Planted()], "tiny", tmp_path, quiet)
    assert len(MEASURED) == 4
    assert len(numbers(tmp_path, "tiny")) == 2


def test_processes_give_what_one_gives(tmp_path):
    several = run([Planted()], "tiny", tmp_path / "two", quiet, workers=2)
    assert MEASURED == []  # not in this process
    one = run([Planted()], "tiny", tmp_path / "one", quiet)
    assert [x.numbers for x in several[0].results] == [x.numbers for x in one[0].results]


def test_a_failing_cell_leaves_a_valid_file(tmp_path, monkeypatch):
    whole = Planted.measure
    monkeypatch.setattr(Planted, "measure", lambda self, cell: {"mean": 1 / (3 - int(cell["n"]))})
    with pytest.raises(ZeroDivisionError):
        run([Planted()], "quick", tmp_path, quiet)
    assert len(numbers(tmp_path)) == 1
    monkeypatch.setattr(Planted, "measure", whole)
    assert run([Planted()], "quick", tmp_path, quiet)[0].is_complete


def test_a_killed_process_is_told(monkeypatch):
    monkeypatch.setattr(running, "measure", os._exit)
    with pytest.raises(ValueError, match="killed.*--workers"):
        list(running.in_processes([1], 2))  # type: ignore[list-item]


def test_progress_counts_what_is_to_do_and_the_time_left(tmp_path):
    told: list[Progress] = []
    run([Planted()], "tiny", tmp_path, told.append)
    assert [(x.done, x.total) for x in told] == [(1, 2), (2, 2)]
    assert told[0].job == Job(Planted(), {"n": 2, "seed": 0})
    run([Planted()], "quick", tmp_path, told.append)
    assert told[-1].total == 9


@pytest.mark.parametrize("fault", [{"seeds": 0}, {"workers": 0}])
def test_counts_below_one_are_refused(tmp_path, fault):
    with pytest.raises(ValueError, match=f"{next(iter(fault))} must be a whole number of at least 1, got 0"):
        run([Planted()], "tiny", tmp_path, quiet, **fault)


def test_the_planted_experiment_is_the_one_of_its_file():
    assert Planted().name == planted.__name__.rpartition(".")[2]
