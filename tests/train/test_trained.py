"""A model is found in its run, and the text that its run held out is found again."""

import json
from pathlib import Path

import pytest

from rebracket.data import Document, hold_out, read
from rebracket.train.config import TrainConfig
from rebracket.train.trained import held_out_text, longest, model_folder

TEXTS = [f"number {number}\n" * (20 + number) for number in range(30)]


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
    config = TrainConfig.from_dict({"model": {}, "data": {"text": [text], "held_out": 0.2}})
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "metrics.jsonl").touch()


def test_the_model_of_a_run_is_in_it(run: Path):
    assert model_folder(run) == run / "model"
    assert model_folder(run / "model") == run / "model"


@pytest.mark.parametrize("name", ["", "model"])
def test_held_out_text_is_what_training_held_out(run: Path, name: str):
    found = held_out_text(run / name)
    assert found == hold_out(read([str(run.parent / "text")]), 0.2)[1]
    assert 0 < len(found) < len(TEXTS)


def test_without_a_model_the_run_says_so(run: Path):
    (run / "model").rmdir()
    with pytest.raises(FileNotFoundError, match="this run has no model yet"):
        model_folder(run)
    with pytest.raises(FileNotFoundError, match="no model or run at"):
        model_folder(run / "nothing")


def test_a_model_without_a_run_needs_a_text(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="lies in no run.*give --text"):
        held_out_text(tmp_path)


def test_standard_input_cannot_be_read_again(run: Path):
    begin(run, "-")
    with pytest.raises(ValueError, match="trained on standard input, which is gone; give --text"):
        held_out_text(run)


def test_a_damaged_config_is_said_to_be_so(run: Path):
    (run / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        held_out_text(run)


def test_the_longest_is_so_in_bytes():
    assert longest([Document("a", "xxx"), Document("b", "éé"), Document("c", "yy")]).name == "b"
