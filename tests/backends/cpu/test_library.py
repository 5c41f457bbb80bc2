"""The library of kernels belongs to the code that calls it, or is refused by name."""

import ctypes
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rebracket.backends import cpu
from rebracket.backends.cpu import library
from rebracket.backends.cpu.convolution import ConvolutionCall
from rebracket.backends.cpu.library import Rows
from rebracket.backends.cpu.recurrence import Backward, Call, Gradients

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")

for module in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
    if not module.name.endswith(".kernels"):
        importlib.import_module(module.name)
STRUCTURES = {
    structure.__name__: structure
    for structure in ctypes.Structure.__subclasses__()
    if structure.__module__.startswith(cpu.__name__) and structure is not library.Fact
}
"""Every structure of a call, and those within."""


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


def test_segments_are_made_of_chunks():
    assert Call.SEGMENT_WRITES % Call.CHUNK_WRITES == 0


@pytest.mark.parametrize("isa", library.isas() if library.PATH else ())
def test_every_source_says_which_structures_its_kernels_take(isa: str):
    sources = "".join(path.read_text() for path in (library.FOLDER / "csrc").glob("*.cpp"))
    called = re.findall(r"^KERNEL\((\w+), (\w+)\)", sources, re.MULTILINE)
    assert {("step", "Call"), ("backward", "Backward")} < set(called)
    for name, structure in called:
        library.with_isa(isa).kernel(name, STRUCTURES[structure])


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


@pytest.mark.usefixtures("reopened")
def test_another_library_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "PATH", Path(torch.__file__).parent / "lib/libc10.so")
    with pytest.raises(OSError, match="is not the kernels of .*: .*rebracket_version"):
        library.opened()


@pytest.mark.usefixtures("reopened")
def test_a_library_of_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "VERSION", 7)
    monkeypatch.delenv(library.ELSEWHERE, raising=False)
    with pytest.raises(OSError, match="expected library.version = 7 and found 2; install rebracket again") as caught:
        library.opened()
    assert str(library.PATH) in str(caught.value)


def other(structure: type[ctypes.Structure], **changes: object) -> type[ctypes.Structure]:
    """A structure of the same name with other fields or constants."""
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": structure._fields_} | changes)


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_structures_of_other_fields_are_refused(structure: type[ctypes.Structure]):
    fields = structure._fields_
    with pytest.raises(OSError, match=rf"expected {structure.__name__}.sizeof = \d+ and found \d+, .*more = "):
        library.load().kernel("any", other(structure, _fields_=(*fields, ("more", ctypes.c_int64))))
    for i, (name, *_) in enumerate(fields):
        renamed = (*fields[:i], ("renamed", *fields[i][1:]), *fields[i + 1 :])
        place = getattr(structure, name).offset
        with pytest.raises(OSError, match=rf"{structure.__name__}.renamed = {place} and found None.*"):
            library.load().kernel("any", other(structure, _fields_=renamed))


@pytest.mark.parametrize("name", ["CHUNK_WRITES", "SEGMENT_WRITES"])
def test_other_constants_are_refused(name: str):
    constants = {"CHUNK_WRITES": Call.CHUNK_WRITES, "SEGMENT_WRITES": Call.SEGMENT_WRITES}
    with pytest.raises(OSError, match=rf"expected Call.{name} = 64 and found {constants[name]};"):
        library.load().kernel("any", other(Call, **(constants | {name: 64})))


def test_structures_within_and_behind_pointers_are_compared():
    assert library.reached(Backward) == [Backward, Call, Rows, Gradients]


def test_a_kernel_that_is_not_there_or_takes_another_structure_is_refused():
    with pytest.raises(OSError, match=r"is not the kernels of .*rebracket_absent_Call_"):
        library.kernel("absent", Call)
    with pytest.raises(OSError, match=r"is not the kernels of .*rebracket_step_ConvolutionCall_"):
        library.kernel("step", ConvolutionCall)


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
