"""A run's folder: one config, one process; its model and the text it held out are found again."""

import json
import multiprocessing
from pathlib import Path

import pytest

from rebracket.data import hold_out, read
from rebracket.train.config import TrainConfig
from rebracket.train.folder import RESULT, RunFolder, differences, model_folder, run_of
from rebracket.train.metrics import Metrics
from tests.train.tiny import config

TEXTS = [f"number {number}\n" * (20 + number) for number in range(30)]


def begun(path, **values):
    folder = RunFolder(path)
    with folder.held(config(**values)):
        pass
    return folder


def test_a_new_or_empty_folder_may_be_used(tmp_path):
    RunFolder(tmp_path / "new").refuse_other(config())
    RunFolder(tmp_path).refuse_other(config())


def test_its_own_run_may_go_on(tmp_path):
    begun(tmp_path / "run").refuse_other(config())


def test_another_config_is_refused_with_what_differs(tmp_path):
    folder = begun(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"run of another config: train.steps was 12, now 13; train.seed was 0, now 4; give"
    ):
        folder.refuse_other(config(steps=13, seed=4))


def test_foreign_folders_and_files_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"holds no run but thesis.txt"):
        RunFolder(tmp_path).refuse_other(config())
    with pytest.raises(ValueError, match=r"is a file"):
        RunFolder(tmp_path / "thesis.txt").refuse_other(config())


def test_a_damaged_config_is_named(tmp_path):
    folder = begun(tmp_path / "run")
    folder.config.write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        folder.refuse_other(config())


def test_a_folder_in_which_a_process_died_at_once_may_be_used(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.json.0a1b2c3d").write_text("{")
    RunFolder(tmp_path / "run").refuse_other(config())


def test_the_config_is_written_once(tmp_path):
    folder = begun(tmp_path / "run")
    before = folder.config.read_bytes()
    assert json.loads(before) == json.loads(json.dumps(config().to_dict()))
    begun(tmp_path / "run", steps=99)
    assert folder.config.read_bytes() == before


def test_a_run_is_finished_when_its_result_is_the_last_line(tmp_path):
    folder = begun(tmp_path / "run")
    assert folder.result() is None
    with Metrics(folder.metrics, step=0) as metrics:
        metrics.add("train", 1, {"loss": 2.0})
        assert folder.result() is None
        whole = dict.fromkeys(sorted(RESULT), 3.0)
        metrics.add("result", 1, {"bits_per_byte": 3.0})
        assert folder.result() is None
        metrics.add("result", 1, whole)
    assert folder.result() == {"kind": "result", "step": 1, **whole}


def test_a_run_that_fails_before_its_first_step_leaves_nothing(tmp_path):
    def fails(folder, kind):
        with folder.held(config()), Metrics(folder.metrics, step=0) as metrics:
            metrics.add(kind, 1, {"threads": 1})
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        fails(RunFolder(tmp_path / "runs" / "new"), "start")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".notes").touch()
    with pytest.raises(ValueError, match="refused"):
        fails(RunFolder(tmp_path / "mine"), "start")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".notes"]
    with pytest.raises(ValueError, match="refused"):
        fails(RunFolder(tmp_path / "begun"), "train")
    assert (tmp_path / "begun" / "config.json").is_file()
    old = begun(tmp_path / "old")
    with pytest.raises(ValueError, match="refused"):
        fails(old, "start")
    assert old.config.is_file()


def test_what_stands_in_the_way_of_the_model_is_said_before_the_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.model.mkdir(parents=True)
    (folder.model / ".DS_Store").touch()
    folder.refuse_unusable()
    (folder.model / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"move away \['notes.txt'\]"):
        folder.refuse_unusable()


@pytest.mark.parametrize("text", ["[]", "7", "[" * 10_000 + "]" * 10_000, '{"model": {}, "data": []}'])
def test_a_config_of_another_shape_is_said_to_be_damaged(tmp_path, text):
    folder = begun(tmp_path / "run")
    folder.config.write_text(text)
    for call in (lambda: folder.refuse_other(config()), lambda: folder.held_out(print)):
        with pytest.raises(ValueError, match=r"config\.json is damaged"):
            call()


def enter(path, said):
    try:
        begun(path)
        said.put("entered")
    except ValueError as error:
        said.put(str(error))


def test_two_processes_do_not_share_one(tmp_path):
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    with RunFolder(tmp_path).held(config()):
        other = context.Process(target=enter, args=(tmp_path, said))
        other.start()
        assert "is in use by another process" in said.get(timeout=60)
        other.join()
    begun(tmp_path)


def test_differences_go_deep():
    there = {"a": 1, "b": {"c": [1], "d": 2}, "e": 3}
    here = {"a": 1, "b": {"c": [2], "d": 2}, "f": 4}
    assert differences(there, here) == ["b.c was [1], now [2]", "e was 3, now null", "f was null, now 4"]
    assert differences(there, there) == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run as training leaves it, without a model worth the name."""
    (tmp_path / "text").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / f"text/{number}.txt").write_text(text)
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    begin(folder, str(tmp_path / "text"))
    return folder


def begin(folder: Path, text: str) -> None:
    table = TrainConfig.from_dict({"model": {}, "data": {"text": [text], "held_out": 0.2}}).to_dict()
    (folder / "config.json").write_text(json.dumps(table))
    (folder / "metrics.jsonl").touch()


def test_the_model_of_a_run_is_in_it(run: Path):
    assert model_folder(run) == run / "model"
    assert model_folder(run / "model") == run / "model"


@pytest.mark.parametrize("name", ["", "model"])
def test_held_out_text_is_what_training_held_out(run: Path, name: str):
    found = run_of(run / name).held_out(print)
    assert found == hold_out(read([str(run.parent / "text")]), 0.2)[1]
    assert 0 < len(found) < len(TEXTS)


def test_without_a_model_the_run_says_so(run: Path):
    (run / "model").rmdir()
    with pytest.raises(FileNotFoundError, match="this run has no model yet"):
        model_folder(run)
    with pytest.raises(FileNotFoundError, match="no model or run at"):
        model_folder(run / "nothing")


def test_a_model_without_a_run_needs_a_text(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="is not in the folder of a run.*give --text"):
        run_of(tmp_path)


def test_standard_input_cannot_be_read_again(run: Path):
    begin(run, "-")
    with pytest.raises(ValueError, match="trained on standard input, which is gone; give --text"):
        run_of(run).held_out(print)


def test_a_damaged_config_is_said_to_be_so(run: Path):
    (run / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        run_of(run).held_out(print)
