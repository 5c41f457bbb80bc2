"""The library of kernels belongs to the code that calls it, or is refused by name."""

import ctypes.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebracket.backends.cpu import library

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")


@pytest.fixture(scope="module")
def built() -> bytes:
    assert library.PATH is not None
    return library.PATH.read_bytes()


@pytest.fixture
def reopened() -> Iterator[None]:
    """The library is opened again in the test, and after it."""
    library.opened.cache_clear()
    yield
    library.opened.cache_clear()


def opened(*paths: Path) -> list[str]:
    """What a process says when it opens the library at each path; one of its own, since a damaged file may kill it."""
    code = """
import sys
from pathlib import Path
from rebracket.backends.cpu import library
for path in sys.argv[1:]:
    library.PATH = Path(path)
    library.opened.cache_clear()
    try:
        library.opened()
        print("opened")
    except OSError as error:
        print(error)
"""
    environment = os.environ | {library.ELSEWHERE: str(library.PATH)}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_python_and_the_kernels_share_their_constants():
    loaded = library.load()
    assert loaded.chunk_writes == library.CHUNK_WRITES
    assert loaded.segment_writes == library.SEGMENT_WRITES
    assert loaded.segment_writes % loaded.chunk_writes == 0


def test_the_library_describes_every_kernel_and_every_field():
    facts = library.facts(library.opened())
    assert facts == library.expected_facts()
    listed = (library.FOLDER / "csrc/kernels.h").read_text()
    assert {name for name in facts if name.startswith("kernel ")} == {
        f"kernel {name}" for name in re.findall(r"X\((\w+), \w+, __VA_ARGS__\)", listed)
    }
    assert {"Call.segments", "Rows.dtype", "Gradients.bonus", "Convolution.grad_bias", "Backward.call"} < facts.keys()


@pytest.mark.skipif(sys.platform != "linux", reason="the formats are those of Linux")
def test_what_is_no_whole_library_is_refused_and_kills_nothing(tmp_path: Path, built: bytes):
    assert built[:4] == b"\x7fELF"
    damaged = {
        "kernels.so cut to a third": (built[: len(built) // 3], f"it was cut short, {len(built) // 3} bytes of"),
        "kernels.so cut by a page": (built[:-4096], "it was cut short"),
        "kernels.so cut by a byte": (built[:-1], "it was cut short"),
        "kernels.so of a header": (built[:64], "it was cut short"),
        "kernels.so of half a header": (built[:40], "too short"),
        "kernels.so empty": (b"", "too short"),
        "kernels.so of text": (b"version https://git-lfs\n" * 9, "invalid ELF header"),
        "kernels.so of another processor": (built[:18] + b"\xb7\x00" + built[20:], "cannot open shared object file"),
    }
    whole = tmp_path / "whole.so"
    whole.write_bytes(built)
    for name, (content, _) in damaged.items():
        (tmp_path / name).write_bytes(content)
    *refusals, last = opened(*(tmp_path / name for name in damaged), whole)
    assert last == "opened"
    for (name, (_, reason)), said in zip(damaged.items(), refusals, strict=True):
        assert said.startswith(f"{tmp_path / name} is not the kernels of {library.FOLDER.parents[1]}: "), said
        assert reason in said
        assert said.endswith("; unset REBRACKET_KERNELS")


def test_another_library_is_refused():
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("no library of mathematics here")
    with pytest.raises(AttributeError, match="rebracket_facts"):
        library.facts(ctypes.CDLL(name))


@pytest.mark.parametrize("name", ["chunk_writes", "kernel step", "Call.scale"])
def test_a_library_of_another_version_is_refused(name: str, tmp_path: Path, built: bytes):
    held = name.encode() + b"\0"
    assert built.count(held) == 1
    path = tmp_path / "kernels.so"
    path.write_bytes(built.replace(held, held[:-2] + b"_\0"))
    with pytest.raises(OSError, match=rf"expected {name} = \d+ and found None"):
        library.checked(path)


@pytest.mark.usefixtures("reopened")
def test_a_library_of_other_numbers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "CONSTANTS", library.CONSTANTS | {"version": 2, "segment_writes": 64})
    monkeypatch.delenv(library.ELSEWHERE, raising=False)
    expected = "expected version = 2 and found 1, segment_writes = 64 and found 128; install rebracket again"
    with pytest.raises(OSError, match=expected) as caught:
        library.opened()
    assert str(library.PATH) in str(caught.value)


@pytest.mark.usefixtures("reopened")
def test_a_structure_of_other_fields_is_refused(monkeypatch: pytest.MonkeyPatch):
    others = {"T": "D", "D": "T"}
    fields = tuple((others.get(name, name), kind) for name, kind, *_ in library.Convolution._fields_)
    Convolution = type("Convolution", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(library, "Convolution", Convolution)
    with pytest.raises(OSError, match="Convolution.D = 0 and found 8, Convolution.T = 8 and found 0"):
        library.opened()


def test_where_the_kernels_are_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    clone = tmp_path / "clone/rebracket/backends/cpu"
    clone.mkdir(parents=True)
    monkeypatch.setattr(library, "FOLDER", clone)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "clone")])
    library.say_missing.cache_clear()
    with pytest.warns(UserWarning, match=re.escape(f"imported from {clone.parents[1]}, where its CPU kernels")):
        library.say_missing()
    installed = tmp_path / "site/rebracket/backends/cpu/kernels.so"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "clone"), str(tmp_path / "site")])
    library.say_missing.cache_clear()
    with pytest.warns(UserWarning, match=re.escape(f"{installed} is there")):
        library.say_missing()
    library.say_missing.cache_clear()
