"""Metrics: one line each, kept through kills, repeated steps not doubled."""

import json
import sys

import pytest

from rebracket.train.metrics import Metrics, records


def write(path, steps, at=0):
    with Metrics(path, step=at) as metrics:
        for step in steps:
            metrics.add("train", step, {"loss": step / 3})


def test_lines_are_json_and_numbers_come_back_bitwise(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 6))
    assert [json.loads(text) for text in path.read_text().splitlines()] == records(path)
    assert [record["loss"] for record in records(path)] == [step / 3 for step in range(1, 6)]


def test_a_line_is_there_as_soon_as_it_is_added(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, step=0) as metrics:
        metrics.add("train", 1, {"loss": 1.0})
        assert len(records(path)) == 1


def test_taken_up_at_a_step_the_file_is_as_if_never_stopped(tmp_path):
    write(tmp_path / "whole", range(1, 9))
    write(tmp_path / "torn", range(1, 7))
    with (tmp_path / "torn").open("a") as file:
        file.write('{"kind": "train", "step": 7, "lo')
    write(tmp_path / "torn", range(4, 9), at=3)
    assert (tmp_path / "torn").read_text() == (tmp_path / "whole").read_text()


INFINITE = '{"kind": "train", "step": Infinity}\n'
DEEP = "[" * 10_000 + "]" * 10_000


@pytest.mark.parametrize(
    "text", ["", "\n", "[]\n", "1\n", '{"kind": "train"}\n', '{"step": "x", "kind": 1}\n', "\0\0", INFINITE, DEEP]
)
def test_what_is_no_record_is_left_out(tmp_path, text):
    path = tmp_path / "metrics.jsonl"
    write(path, [1])
    with path.open("a") as file:
        file.write(text)
    assert [record["step"] for record in records(path)] == [1]


def test_no_file_is_no_records(tmp_path):
    assert records(tmp_path / "missing") == []


def test_tensorboard_is_asked_for_by_name_if_it_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="needs the package tensorboard: pip install tensorboard"):
        Metrics(tmp_path / "metrics.jsonl", step=0, events=tmp_path / "events")


def test_tensorboard_gets_the_numbers(tmp_path, monkeypatch):
    seen = []

    class Writer:
        def __init__(self, folder, purge_step):
            seen.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            seen.append((name, value, step))

        def close(self):
            seen.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type(sys)("fake"))
    monkeypatch.setattr(sys.modules["torch.utils.tensorboard"], "SummaryWriter", Writer, raising=False)
    with Metrics(tmp_path / "metrics.jsonl", step=4, events=tmp_path / "events") as metrics:
        metrics.add("train", 5, {"loss": 1.5, "note": "text"})
    assert seen == [(str(tmp_path / "events"), 5), ("train/loss", 1.5, 5), "closed"]
