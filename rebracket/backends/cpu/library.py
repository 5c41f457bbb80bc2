"""The shared library of kernels: its structures, its loading, and the instruction set in use."""

from __future__ import annotations

import ctypes
import functools
import os
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
    return next((path for end in (".so", ".dylib", ".dll") if (path := FOLDER / f"kernels{end}").exists()), None)


PATH = found()
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
VARIABLE = "REBRACKET_ISA"
LARGE = 4 << 20
"""Bytes from which on a result asks for large pages."""


@final
class Rows(ctypes.Structure):
    """x [B,T,H,D] as the kernels see it: strides in elements, D contiguous."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "time", "head", "heads")),
        ("dtype", ctypes.c_int32),
    )


@final
class Call(ctypes.Structure):
    """One call of the recurrence."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "V", "N", "per_token", "slices")),
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


@final
@dataclass(frozen=True)
class Library:
    """The loaded kernels of one instruction set."""

    entry: ctypes.CDLL
    kernels: int
    isa: str
    loop: int | None

    def forward(self, call: Call) -> None:
        self.entry.rebracket_forward(self.kernels, ctypes.byref(call), self.loop)

    def backward(self, call: Call, gradients: Gradients) -> None:
        self.entry.rebracket_backward(self.kernels, ctypes.byref(call), ctypes.byref(gradients), self.loop)

    def step(self, call: Call | ctypes.Array[ctypes.c_int64]) -> None:
        self.entry.rebracket_step(self.kernels, ctypes.byref(call), self.loop)

    def convolve(self, call: Convolution) -> None:
        self.entry.rebracket_convolution_forward(self.kernels, ctypes.byref(call), self.loop)

    def convolve_back(self, call: Convolution) -> None:
        self.entry.rebracket_convolution_backward(self.kernels, ctypes.byref(call), self.loop)


@functools.cache
def load() -> Library:
    """The library with the best instruction set of this machine, or that which REBRACKET_ISA names."""
    return with_isa(os.environ.get(VARIABLE))


@functools.cache
def say_missing() -> None:
    """Says once that the kernels are not there."""
    warnings.warn(
        "rebracket was installed without a C++ compiler, so its CPU kernels are missing and the reference backend "
        "runs; install a compiler and reinstall rebracket to have them",
        stacklevel=2,
    )


def with_isa(name: str | None) -> Library:
    """The library bound to an instruction set; None is the best."""
    entry = opened()
    isa = name or isas()[0]
    kernels = entry.rebracket_kernels(isa.encode())
    if not kernels:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(isas())} on this machine, got {isa!r}")
    return Library(entry, kernels, isa, torch_loop())


@functools.cache
def opened() -> ctypes.CDLL:
    entry = ctypes.CDLL(str(PATH))
    entry.rebracket_isa.restype, entry.rebracket_isa.argtypes = ctypes.c_char_p, [ctypes.c_int64]
    entry.rebracket_kernels.restype, entry.rebracket_kernels.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    entry.rebracket_large_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    one = [ctypes.c_void_p, ctypes.c_void_p]
    entry.rebracket_forward.argtypes = entry.rebracket_step.argtypes = [*one, ctypes.c_void_p]
    entry.rebracket_backward.argtypes = [*one, ctypes.c_void_p, ctypes.c_void_p]
    for name in ("forward", "backward"):
        getattr(entry, f"rebracket_convolution_{name}").argtypes = [*one, ctypes.c_void_p]
    return entry


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
    B, T, H = x.stride()[:3]
    return Rows(x.data_ptr(), B, T, H, x.shape[2], DTYPES[x.dtype])
