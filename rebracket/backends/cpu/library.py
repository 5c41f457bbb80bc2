"""The shared library of kernels: its structures, its loading, and the instruction set in use.

The library describes itself: its constants, its kernels, the size of each structure and the place of each field. All of
it is compared when the library is loaded, so that a library of another version is refused, not called.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import final

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
CHUNK_WRITES = 16
"""Writes that the kernels compute at once."""
SEGMENT_WRITES = 128
"""Writes between two states that the forward pass keeps for the backward pass."""
CONSTANTS = {"version": 1, "chunk_writes": CHUNK_WRITES, "segment_writes": SEGMENT_WRITES}
"""What this code takes for granted of the library; the version is raised where a meaning changes and no size does."""


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
class Call(ctypes.Structure):
    """One call of the recurrence; `segments` is how many states `entries` has room for in each head."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "V", "N", "per_token", "slices", "segments")),
        *((name, ctypes.c_int32) for name in ("decay", "normalize")),
        ("scale", ctypes.c_float),
        *((name, Rows) for name in ("q", "k", "v", "r", "beta", "log_decay", "out")),
        *(
            (name, ctypes.c_void_p)
            for name in ("bonus", "offsets", "memory_in", "key_sum_in", "memory_out", "key_sum_out")
        ),
        *((name, ctypes.c_void_p) for name in ("entries", "first_segment", "carries", "wrong")),
    )


@final
class Gradients(ctypes.Structure):
    """The gradients of one call: of its outputs in, of its inputs out."""

    _fields_ = (
        *((name, Rows) for name in ("out", "q", "k", "v", "r", "beta", "log_decay")),
        *((name, ctypes.c_void_p) for name in ("memory_out", "key_sum_out", "memory_in", "key_sum_in", "bonus")),
    )


@final
class Backward(ctypes.Structure):
    """The backward pass of a call."""

    _fields_ = (("call", ctypes.POINTER(Call)), ("gradients", ctypes.POINTER(Gradients)))


@final
class Convolution(ctypes.Structure):
    """One call of the short convolution; the last line is for its backward pass alone."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("T", "D", "N", "width", "block", "blocks")),
        *((name, ctypes.c_int32) for name in ("silu", "dtype", "weight_dtype", "bias_dtype")),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("x_row", "x_token")),
        *((name, ctypes.c_void_p) for name in ("y", "tail", "tail_out", "weight", "bias", "offsets", "first_block")),
        ("grad_y", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("grad_y_row", "grad_y_token")),
        *(
            (name, ctypes.c_void_p)
            for name in ("grad_tail_out", "grad_x", "grad_tail", "sums", "grad_weight", "grad_bias")
        ),
    )


KERNELS: dict[str, type[ctypes.Structure]] = {
    "forward": Call,
    "step": Call,
    "backward": Backward,
    "convolution_forward": Convolution,
    "convolution_backward": Convolution,
}
"""Every kernel and the structure that describes its call, as listed in csrc/kernels.h."""


@final
@dataclass(frozen=True)
class Library:
    """The loaded kernels of one instruction set.

    A kernel checks the sizes, strides and offsets of its call before it reads or writes anything else; a ValueError
    says what does not fit.
    """

    entry: ctypes.CDLL
    kernels: int
    isa: str
    loop: int | None
    chunk_writes: int
    segment_writes: int

    def forward(self, call: Call) -> None:
        check(self.entry.rebracket_forward(self.kernels, ctypes.byref(call), self.loop))

    def backward(self, call: Call, gradients: Gradients) -> None:
        both = Backward(ctypes.pointer(call), ctypes.pointer(gradients))
        check(self.entry.rebracket_backward(self.kernels, ctypes.byref(both), self.loop))

    def step(self, call: Call | ctypes.Array[ctypes.c_int64]) -> None:
        check(self.entry.rebracket_step(self.kernels, ctypes.byref(call), self.loop))

    def step_at(self, address: int) -> None:
        """A step whose structure is at this address; the shortest way from Python."""
        if refusal := self.entry.rebracket_step(self.kernels, address, self.loop):
            check(refusal)

    def convolve(self, call: Convolution) -> None:
        check(self.entry.rebracket_convolution_forward(self.kernels, ctypes.byref(call), self.loop))

    def convolve_back(self, call: Convolution) -> None:
        check(self.entry.rebracket_convolution_backward(self.kernels, ctypes.byref(call), self.loop))


def check(refusal: bytes | None) -> None:
    """Raises what a kernel says against its call."""
    if refusal is not None:
        raise (MemoryError if refusal.startswith(b"out of memory") else ValueError)(refusal.decode())


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
    entry = opened()
    isa = name or isas()[0]
    kernels = entry.rebracket_kernels(isa.encode())
    if not kernels:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(isas())} on this machine, got {isa!r}")
    known = facts(entry)
    return Library(entry, kernels, isa, torch_loop(), known["chunk_writes"], known["segment_writes"])


@functools.cache
def opened() -> ctypes.CDLL:
    """The library at PATH, with its functions bound; an OSError says why it cannot be this code's library."""
    assert PATH is not None
    try:
        entry = checked(PATH)
    except (OSError, AttributeError) as error:
        remedy = f"unset {ELSEWHERE}" if os.environ.get(ELSEWHERE) else "install rebracket again"
        raise OSError(f"{PATH} is not the kernels of {FOLDER.parents[1]}: {error}; {remedy}") from error
    pointer = ctypes.c_void_p
    entry.rebracket_isa.restype, entry.rebracket_isa.argtypes = ctypes.c_char_p, [ctypes.c_int64]
    entry.rebracket_kernels.restype, entry.rebracket_kernels.argtypes = pointer, [ctypes.c_char_p]
    entry.rebracket_large_pages.restype, entry.rebracket_large_pages.argtypes = None, [pointer, ctypes.c_int64]
    for name in KERNELS:
        function = getattr(entry, f"rebracket_{name}")
        function.restype, function.argtypes = ctypes.c_char_p, [pointer, pointer, pointer]
    return entry


def checked(path: Path) -> ctypes.CDLL:
    """The library at a path, found to be whole and to describe itself as this code expects."""
    length, size = stated_length(path), path.stat().st_size
    if length > size:
        raise OSError(f"it was cut short, {size} bytes of {length}")
    entry = ctypes.CDLL(str(path))
    expected, found = expected_facts(), facts(entry)
    wrong = [name for name in expected | found if expected.get(name) != found.get(name)]
    if wrong:
        listed = ", ".join(f"{name} = {expected.get(name)} and found {found.get(name)}" for name in wrong[:3])
        raise OSError(f"expected {listed}" + (f", and {len(wrong) - 3} further differences" if len(wrong) > 3 else ""))
    return entry


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
    """A line of the library's description of itself."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


def facts(entry: ctypes.CDLL) -> dict[str, int]:
    """The library's description of itself."""
    function = entry.rebracket_facts
    function.restype, found, i = ctypes.POINTER(Fact), {}, 0
    listed = function()
    while name := listed[i].name:
        found[name.decode()] = listed[i].value
        i += 1
    return found


def expected_facts() -> dict[str, int]:
    """The description of a library that belongs to this code."""
    structures = (Rows, Call, Gradients, Backward, Convolution)
    kernels = {f"kernel {name}": ctypes.sizeof(structure) for name, structure in KERNELS.items()}
    sizes = {f"size {structure.__name__}": ctypes.sizeof(structure) for structure in structures}
    places = {f"{s.__name__}.{name}": getattr(s, name).offset for s in structures for name, *_ in s._fields_}
    return CONSTANTS | kernels | sizes | places


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
