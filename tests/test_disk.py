"""A disk that fails at any one operation leaves what was there, and nothing beside it, whatever was being written."""

import builtins
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import rebracket as rb
from rebracket import cli
from rebracket.base import files
from rebracket.data import Document, token_stream
from rebracket.lab.base import record
from rebracket.lm.checkpoints import save_model
from rebracket.lm.config import Config
from rebracket.lm.generation import Generation
from rebracket.lm.model import LanguageModel
from rebracket.lm.tokenizer import Tokenizer
from rebracket.train import checkpoint
from rebracket.train.config import TrainConfig
from rebracket.train.folder import RunFolder
from rebracket.train.metrics import Metrics

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the operations are those of POSIX")
OPERATIONS = ("open", "mkdir", "replace", "rename", "fsync", "chmod")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)


class FailingDisk:
    """Counts the operations that change files of a folder, and lets the one of a number fail."""

    def __init__(self, folder: Path, number: int, code: int) -> None:
        self.folder, self.number, self.code, self.count = str(folder), number, code, 0

    @property
    def failed(self) -> bool:
        return self.count > self.number

    def reached(self, path: object) -> None:
        """One more operation on a path, or on an open file, which has no name."""
        if isinstance(path, (str, os.PathLike)) and not os.fspath(path).startswith(self.folder):
            return
        self.count += 1
        if self.count == self.number + 1:
            raise OSError(
                self.code, os.strerror(self.code), *([os.fspath(path)] if isinstance(path, (str, os.PathLike)) else [])
            )

    def operation(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: object, *args: Any, **others: Any) -> Any:
            if real.__name__ != "open" or args[0] & (os.O_WRONLY | os.O_RDWR):  # what is only read is not changed
                self.reached(path)
            return real(path, *args, **others)

        return run

    def opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Opens files whose writes are operations too; a failing one leaves half of what it was given."""

        def run(path: object, mode: str = "r", *args: Any, **others: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real(path, mode, *args, **others)
            self.reached(path)
            file = real(path, mode, *args, **others)
            write = file.write

            def half(data: Any) -> int:
                try:
                    self.reached(path)
                except OSError:
                    write(data[: len(data) // 2])
                    file.flush()
                    raise
                return write(data)

            file.write = half
            return file

        return run

    def saving(self, real: Callable[..., None]) -> Callable[..., None]:
        """Writes tensors as safetensors does, which has the system's error as text."""

        def run(tensors: object, path: Path, metadata: object) -> None:
            try:
                self.reached(path)
            except OSError as error:
                path.write_bytes(b"half of it")
                raise SafetensorError(f"Error while serializing: I/O error (os error {error.errno})") from error
            real(tensors, path, metadata)

        return run

    @contextmanager
    def mounted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, self.operation(getattr(os, name)))
            patch.setattr(io, "open", self.opening(io.open))
            patch.setattr(builtins, "open", io.open)
            patch.setattr(files, "save_file", self.saving(files.save_file))
            yield


PLAIN = Tokenizer.bytes()
LAYERS = [{"mixer": "gated_deltanet", "heads": 2}, {"mixer": "softmax", "heads": 2}]
MODEL = {"d_model": 8, "context": 6, "layers": LAYERS}
WRITER = LanguageModel(Config.from_dict(MODEL | {"vocab_size": PLAIN.vocab_size}))


def write_run(folder: Path, version: int) -> None:
    with (
        RunFolder(folder / "run").held(TrainConfig(model=MODEL)),
        Metrics(folder / "run/metrics.jsonl", step=9) as metrics,
    ):
        metrics.add("train", version, {"loss": 1.0})


def write_record(folder: Path, version: int) -> None:
    record.write(folder / "x.json", replace(RECORD, machine=str(version)))


def write_checkpoint(folder: Path, version: int) -> None:
    checkpoint.write(folder / "checkpoints", checkpoint.Checkpoint(version, "", {"x": torch.ones(2)}), keep=2)


def write_generation(folder: Path, version: int) -> None:
    Generation.begin(WRITER, PLAIN, version).save(folder / "texts")


RECORD = record.Record(
    "x", "tiny", "abc", 1, "a machine", {"torch": "2"}, (record.Result({"n": 2}, {"mean": 0.5}, 0.1),)
)
WRITERS: dict[str, Callable[[Path, int], object]] = {
    "state": lambda folder, version: rb.State.zeros(1, 2, 3, version).save(folder / "state"),
    "key_values": lambda folder, version: rb.KeyValues.empty(version, 2, 3, 2, 4).save(folder / "kv"),
    "cache": lambda folder, version: WRITER.empty_cache(version).save(folder / "cache", "a model"),
    "generation": write_generation,
    "checkpoint": write_checkpoint,
    "model": lambda folder, version: save_model(folder / "model", WRITER, PLAIN),
    "tokenizer": lambda folder, version: PLAIN.save(folder / "tokenizer.json"),
    "run": write_run,
    "tokens": lambda folder, version: token_stream([Document("x", "text" * version)], PLAIN, folder / "tokens"),
    "record": write_record,
}
"""What writes a file or several into a folder; a version is what it holds."""


def contents(folder: Path) -> dict[str, object]:
    """What every file holds."""
    return {str(path.relative_to(folder)): meaning(path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def meaning(data: bytes) -> object:
    """Bytes; a file of tensors as its header and its data, since the order of a header's entries is any."""
    if data[8:9] != b"{":
        return data
    header = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:header]), data[header:]


def whole(name: str, data: object, before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Whether a file is the old one or the new one; a log is the old one and a part of what was added."""
    if name.endswith(".jsonl"):
        assert isinstance(data, bytes)
        return any(isinstance(x, bytes) and data.startswith(x) for x in (before[name], b""))
    return data in (before.get(name), after.get(name))


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_operation_may_fail(writer: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write = WRITERS[writer]
    (tmp_path / "twice").mkdir()
    for version in (1, 2):
        write(tmp_path / "twice", version)
    after = contents(tmp_path / "twice")
    refusals: list[OSError] = []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, 1)
        before, disk = contents(folder), FailingDisk(folder, number, code)
        try:
            with disk.mounted(monkeypatch):
                write(folder, 2)
        except OSError as error:
            refusals.append(error)
        else:  # nothing failed, or a folder could not be made that was there
            assert contents(folder).keys() == after.keys()
            if not disk.failed:
                break
        found = contents(folder)
        assert before.keys() <= found.keys() <= before.keys() | after.keys(), number
        assert [name for name, data in found.items() if not whole(name, data, before, after)] == [], number
    assert len(refusals) >= 4
    for error in refusals:
        assert error.errno == code
        assert "\n" not in cli.one_line(error)
        assert str(tmp_path) in cli.one_line(error)
