"""The shared library of kernels: its loading, the instruction set in use, and its kernels by name.

A caller declares the structure of its call beside itself and asks for `kernel(name, structure)`. The library describes
every structure: its size, the place of each field, its constants. All of it is compared before a kernel is called for
the first time, so that a library of another version is refused, not called.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

FOLDER = Path(__file__).parent
ELSEWHERE = "REBRACKET_KERNELS"


def found() -> Path | None:
    """The built library, which is beside this file or where REBRACKET_KERNELS says, or None."""
    if elsewhere := os.environ.get(ELSEWHERE):
        if not Path(elsewhere).exists():
            raise FileNotFoundError(f"{ELSEWHERE} must be the path of a built library, got {elsewhere!r}")
        return Path(elsewhere)
    return built_in(FOLDER)


def built_in(folder: Path) -> Path | None:
    """The library in a folder, or None."""
    return next((path for end in (".so", ".dylib", ".dll") if (path := folder / f"kernels{end}").exists()), None)


PATH = found()
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
VARIABLE = "REBRACKET_ISA"
LARGE = 4 << 20
"""Bytes from which on a result asks for large pages."""
VERSION = 2
"""Raised, with that of csrc/dispatch.cpp, where the meaning of a call changes and no layout does."""


@final
class Rows(ctypes.Structure):
    """x [B,T,heads,D] as the kernels see it: strides of batch, time and head in elements, D contiguous."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "time", "head", "heads")),
        ("dtype", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("B", "T", "D")),
    )


@final
@dataclass(frozen=True)
class Kernel:
    """A kernel of one instruction set, over torch's threads.

    It checks the sizes, strides and offsets of its call before it reads or writes anything else; a ValueError says
    what does not fit.
    """

    function: Callable[[object, int | None], bytes | None]
    loop: int | None

    def __call__(self, call: object) -> None:
        """Runs the call whose structure is given by reference or by its address."""
        if refusal := self.function(call, self.loop):
            raise (MemoryError if refusal.startswith(b"out of memory") else ValueError)(refusal.decode())


@final
@dataclass(frozen=True)
class Library:
    """The loaded kernels of one instruction set."""

    entry: ctypes.CDLL
    isa: str

    def kernel(self, name: str, structure: type[ctypes.Structure]) -> Kernel:
        """The kernel of this name; an OSError says where its layout is not that of the structure."""
        with belonging():
            for each in reached(structure):
                told = facts(getattr(self.entry, f"rebracket_layout_{each.__name__}_{self.isa}"))
                compare(each.__name__, layout(each), told)
            function = getattr(self.entry, f"rebracket_{name}_{structure.__name__}_{self.isa}")
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_void_p]
        return Kernel(function, torch_loop())


@functools.cache
def kernel(name: str, structure: type[ctypes.Structure]) -> Kernel:
    """The kernel that a source in csrc/ defines under this name, called with this structure."""
    return load().kernel(name, structure)


@functools.cache
def load() -> Library:
    """The library with the best instruction set of this machine, or that which REBRACKET_ISA names."""
    return with_isa(os.environ.get(VARIABLE))


@functools.cache
def say_missing() -> None:
    """Warns once that the kernels are missing, and where."""
    copies = [built_in(Path(path, *FOLDER.parts[-3:])) for path in sys.path]
    elsewhere = next((path for path in copies if path and path.parent != FOLDER), None)
    warnings.warn(
        f"rebracket was imported from {FOLDER.parents[1]}, where its CPU kernels are missing, so the reference backend "
        "runs: it was installed without a C++ compiler, or is a clone that was not built; "
        + (f"{elsewhere} is there" if elsewhere else "install a compiler, then install rebracket again"),
        stacklevel=2,
    )


def with_isa(name: str | None) -> Library:
    """The library bound to an instruction set; None is the best."""
    isa = name or isas()[0]
    if isa not in isas():
        raise ValueError(f"{VARIABLE} must be one of {', '.join(isas())} on this machine, got {isa!r}")
    return Library(opened(), isa)


@functools.cache
def opened() -> ctypes.CDLL:
    """The library at PATH, found to be whole and of this version; an OSError says why it cannot be this code's."""
    assert PATH is not None
    with belonging():
        length, size = stated_length(PATH), PATH.stat().st_size
        if length > size:
            raise OSError(f"it was cut short, {size} bytes of {length}")
        entry = ctypes.CDLL(str(PATH))
        compare("library", {"version": VERSION}, {"version": entry.rebracket_version()})
    entry.rebracket_isa.restype, entry.rebracket_isa.argtypes = ctypes.c_char_p, [ctypes.c_int64]
    entry.rebracket_large_pages.restype = None
    entry.rebracket_large_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return entry


@contextmanager
def belonging() -> Iterator[None]:
    """Says of what is missing or wrong in the library whose it was taken for, and the remedy."""
    try:
        yield
    except (OSError, AttributeError) as error:
        remedy = f"unset {ELSEWHERE}" if os.environ.get(ELSEWHERE) else "install rebracket again"
        raise OSError(f"{PATH} is not the kernels of {FOLDER.parents[1]}: {error}; {remedy}") from error


def compare(of: str, expected: dict[str, int], found: dict[str, int]) -> None:
    """Raises what the library says of itself that this code does not expect."""
    wrong = [name for name in expected | found if expected.get(name) != found.get(name)]
    if wrong:
        listed = ", ".join(f"{of}.{name} = {expected.get(name)} and found {found.get(name)}" for name in wrong[:3])
        raise OSError(f"expected {listed}" + (f", and {len(wrong) - 3} further differences" if len(wrong) > 3 else ""))


def stated_length(path: Path) -> int:
    """The least length of a 64-bit ELF file by its own header, which the system trusts and dies of; 0 for others."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:5] != b"\x7fELF\2" or len(header) < 64:
        return 0
    order = "<" if header[5] == 1 else ">"
    (sections,) = struct.unpack_from(f"{order}Q", header, 40)
    size, count = struct.unpack_from(f"{order}2H", header, 58)
    return sections + size * count


@final
class Fact(ctypes.Structure):
    """A line of what the library says of a structure."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


def facts(described: Any) -> dict[str, int]:
    """What the library says of a structure, by the function that says it."""
    described.restype, described.argtypes = ctypes.POINTER(Fact), []
    listed = iter(described())
    return {fact.name.decode(): fact.value for fact in itertools.takewhile(lambda fact: fact.name, listed)}


def layout(structure: type[ctypes.Structure]) -> dict[str, int]:
    """What the library has to say of a structure: its size, the place of each field, and its constants, in capitals."""
    constants = {name: x for name, x in vars(structure).items() if name.isupper() and isinstance(x, int)}
    places = {name: getattr(structure, name).offset for name, *_ in structure._fields_}
    return {"sizeof": ctypes.sizeof(structure)} | constants | places


def reached(structure: type[ctypes.Structure]) -> list[type[ctypes.Structure]]:
    """A structure, and those that its fields hold or point to."""
    kinds = [getattr(kind, "_type_", kind) for _, kind, *_ in structure._fields_]
    inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ctypes.Structure)]
    return list(dict.fromkeys([structure, *(each for kind in inner for each in reached(kind))]))


@functools.cache
def isas() -> tuple[str, ...]:
    """The instruction sets that this machine runs, the best first."""
    names, entry = [], opened()
    while name := entry.rebracket_isa(len(names)):
        names.append(name.decode())
    return tuple(names)


@functools.cache
def torch_loop() -> int | None:
    """The address of torch's own parallel loop, so that torch.set_num_threads holds here; None runs on one thread."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        library = Path(torch.__file__).parent / "lib" / name
        if library.exists():
            loop = getattr(ctypes.CDLL(str(library)), "torch_parallel_for", None)
            return None if loop is None else ctypes.cast(loop, ctypes.c_void_p).value
    return None


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """New memory for a result, on large pages where it is large; whatever torch's own defaults are."""
    x = torch.empty(shape, dtype=dtype, device="cpu")
    if x.nbytes >= LARGE:
        opened().rebracket_large_pages(x.data_ptr(), x.nbytes)
    return x


def rows(x: Tensor | None) -> Rows:
    """A tensor [B,T,H,D] or [B,T,H] for the kernels; None is absent."""
    if x is None:
        return Rows()
    sizes, strides = x.shape, x.stride()
    columns = sizes[3] if len(sizes) == 4 else 1
    return Rows(x.data_ptr(), *strides[:3], sizes[2], DTYPES[x.dtype], sizes[0], sizes[1], columns)
