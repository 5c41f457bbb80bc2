"""A file of tensors comes back as it went, or is refused with its path and what was found."""

import errno
import json
import re
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rebracket.base import files
from rebracket.base.files import read_tensors, write_tensors


def sample() -> dict[str, Tensor]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "transposed": base.transpose(0, 2),
        "view": base[1],
        "same": base,
        "half": torch.randn(5).to(torch.bfloat16),
        "counts": torch.tensor([1, 2, 3]),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
    }


def written(path: Path) -> Path:
    write_tensors(path, sample(), "state", 3, {"note": "naïve"})
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "a file.safetensors")


def rewrite_header(file: Path, old: str, new: str) -> None:
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + size].decode()
    assert old in header
    changed = header.replace(old, new).encode()
    file.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + size :])


def refusal(file: Path, kind: str = "state", version: int = 3) -> str:
    with pytest.raises(ValueError, match=re.escape(str(file))) as caught:
        read_tensors(file, kind, version)
    return str(caught.value)


def test_round_trip_is_exact(file: Path):
    tensors, extra = read_tensors(file, "state", 3)
    assert extra == {"note": "naïve"}
    assert tensors.keys() == sample().keys()
    for name, tensor in sample().items():
        if name != "half":
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0)
    assert tensors["half"].dtype == torch.bfloat16


def test_every_bit_of_a_low_precision_tensor_returns(tmp_path: Path):
    half = torch.randn(100).to(torch.bfloat16)
    write_tensors(tmp_path / "x", {"half": half}, "state", 1, {})
    assert torch.equal(read_tensors(tmp_path / "x", "state", 1)[0]["half"], half)


def test_a_tensor_that_needs_gradients_is_written_detached(tmp_path: Path):
    write_tensors(tmp_path / "x", {"w": torch.ones(2, requires_grad=True)}, "state", 1, {})
    assert not read_tensors(tmp_path / "x", "state", 1)[0]["w"].requires_grad


def test_reading_gives_memory_of_its_own(file: Path):
    first, _ = read_tensors(file, "state", 3)
    first["same"].zero_()
    assert torch.equal(read_tensors(file, "state", 3)[0]["same"], sample()["same"])


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(file: Path, monkeypatch: pytest.MonkeyPatch):
    before = file.read_bytes()

    def fails(_tensors: object, path: Path, _metadata: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(files, "save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        written(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_second_write_replaces_the_first(file: Path):
    write_tensors(file, {"x": torch.ones(1)}, "state", 3, {})
    assert read_tensors(file, "state", 3)[0].keys() == {"x"}
    assert list(file.parent.iterdir()) == [file]


def test_others_may_read_it_as_they_may_any_new_file(file: Path):
    other = file.with_name("other")
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be limited there")
def test_a_full_disk_is_an_error_of_the_system_and_leaves_the_old_file(tmp_path: Path):
    """A limit on the size of files stands for the full disk."""
    import resource

    file = written(tmp_path / "x")
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_tensors(file, {"x": torch.ones(1000)}, "state", 3, {})
        with pytest.raises(OSError, match="File too large") as plain, files.replacing(tmp_path / "y") as beside:
            beside.write_bytes(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(file))
    assert (plain.value.errno, plain.value.filename) == (errno.EFBIG, str(tmp_path / "y"))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("key", sorted(files.RESERVED))
def test_reserved_keys_are_refused(tmp_path: Path, key: str):
    with pytest.raises(ValueError, match="extra"):
        write_tensors(tmp_path / "x", {}, "state", 1, {key: "mine"})


def test_a_missing_file_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_tensors(tmp_path / "nowhere", "state", 1)


def test_a_missing_folder_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        written(tmp_path / "nowhere" / "x")


def test_another_kind_or_version_is_refused(file: Path):
    assert "expected a 'key_values' file, found a 'state' file" in refusal(file, kind="key_values")
    assert "found version 3" in refusal(file, version=4)


def test_a_folder_and_an_empty_file_are_refused(tmp_path: Path):
    assert "folder" in refusal(tmp_path)
    (tmp_path / "empty").touch()
    assert "empty" in refusal(tmp_path / "empty")


def test_foreign_files_are_refused(tmp_path: Path):
    (tmp_path / "text").write_text("hello, this is no tensor file at all")
    assert "foreign" in refusal(tmp_path / "text")
    save_file({"x": torch.ones(2)}, tmp_path / "other", {"format": "pt"})
    assert "did not write" in refusal(tmp_path / "other")
    save_file({"x": torch.ones(2)}, tmp_path / "bare")
    assert "did not write" in refusal(tmp_path / "bare")


def test_every_truncation_is_refused(file: Path):
    content = file.read_bytes()
    for length in [1, 7, 8, 9, 100, len(content) // 2, len(content) - 1]:
        file.write_bytes(content[:length])
        assert "found" in refusal(file)


def test_any_flipped_bit_of_the_data_is_refused(file: Path):
    content = file.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    for place in range(start, len(content), 17):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        file.write_bytes(damaged)
        assert "changed after it was written" in refusal(file)


def test_changed_shapes_and_lost_records_are_refused(file: Path):
    rewrite_header(file, '"shape":[3,4]', '"shape":[4,3]')
    assert "view: written ['float32', [3, 4]" in refusal(file)
    rewrite_header(written(file), files.TENSORS, "lost")
    assert "damaged metadata" in refusal(file)
    rewrite_header(written(file), json.dumps('{"transposed')[1:-1], "{[")
    assert "damaged metadata" in refusal(file)
