"""A run's folder: begun once, by one config, in one process."""

import json
import multiprocessing

import pytest

from rebracket.train.folder import RunFolder, differences
from rebracket.train.metrics import Metrics
from tests.train.tiny import config


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
        metrics.add("result", 1, {"bits_per_byte": 3.0})
    assert folder.result() == {"kind": "result", "step": 1, "bits_per_byte": 3.0}


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
