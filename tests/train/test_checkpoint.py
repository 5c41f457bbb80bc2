"""Checkpoints: whole or not there, the newest that is whole, and only as many as are wanted."""

from pathlib import Path

import pytest
import torch

from rebracket.train import checkpoint as module
from rebracket.train.checkpoint import Checkpoint, newest, write
from tests.train.tiny import ignore, same


def at(step):
    return Checkpoint(
        step, f"corpus {step}", {"weights": torch.arange(4.0) + step, "bytes": torch.tensor([step], dtype=torch.uint8)}
    )


def names(folder: Path):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_comes_back(tmp_path):
    said = []
    for step in (9, 10, 200):
        write(tmp_path / "all", at(step), keep=5)
    found = newest(tmp_path / "all", said.append)
    assert found is not None
    assert (found.step, found.corpus) == (200, "corpus 200")
    assert same(dict(found.tensors), dict(at(200).tensors))
    assert said == []


def test_only_the_newest_few_stay(tmp_path):
    for step in range(5):
        write(tmp_path, at(step), keep=2)
    assert names(tmp_path) == ["step-000000003.safetensors", "step-000000004.safetensors"]


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    changed = data[:-1] + bytes([data[-1] ^ 1])
    path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "bit": changed, "foreign": b"x" * len(data)}[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "bit", "foreign"])
def test_a_damaged_one_is_set_aside_for_the_one_before(tmp_path, kind):
    said = []
    for step in (1, 2, 3):
        write(tmp_path, at(step), keep=3)
    damage(tmp_path / "step-000000003.safetensors", kind)
    found = newest(tmp_path, said.append)
    assert found is not None
    assert found.step == 2
    assert len(said) == 1
    assert "step-000000003" in said[0]
    assert "step-000000003.safetensors.damaged" in names(tmp_path)


def test_damaged_ones_do_not_count_among_those_kept(tmp_path):
    for step in (1, 3):
        write(tmp_path, at(step), keep=2)
    damage(tmp_path / "step-000000003.safetensors", "cut")
    newest(tmp_path, ignore)
    write(tmp_path, at(2), keep=1)
    found = newest(tmp_path, ignore)
    assert found is not None
    assert found.step == 2


def test_none_is_none(tmp_path):
    assert newest(tmp_path, ignore) is None
    assert newest(tmp_path / "missing", ignore) is None
    write(tmp_path, at(1), keep=1)
    damage(tmp_path / "step-000000001.safetensors", "empty")
    assert newest(tmp_path, ignore) is None


def test_what_a_killed_process_was_writing_is_never_read_and_goes(tmp_path):
    write(tmp_path, at(1), keep=1)
    torn = tmp_path / ".step-000000002.safetensors.0a1b2c3d"
    torn.write_bytes(b"half")
    found = newest(tmp_path, ignore)
    assert found is not None
    assert found.step == 1
    assert not torn.exists()


def test_a_failed_write_leaves_the_old_ones(tmp_path, monkeypatch):
    write(tmp_path, at(1), keep=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_tensors", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, at(2), keep=1)
    assert names(tmp_path) == ["step-000000001.safetensors"]


def test_no_pickle_is_in_it(tmp_path):
    path = write(tmp_path, at(1), keep=1)
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert path.stat().st_size == 8 + header + 16 + 1
