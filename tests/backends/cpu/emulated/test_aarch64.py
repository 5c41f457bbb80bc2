"""The kernels of another architecture, cross-compiled and run under emulation by a small driver of their C interface.

Needs a compiler and an emulator: `apt-get install g++-aarch64-linux-gnu qemu-user`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rebracket.backends.cpu import library
from rebracket.ops.state import State
from rebracket.testing.budgets import check
from rebracket.testing.law import Row, results
from rebracket.testing.operators.convolution import DTYPES, SHAPES, ConvolutionCase, alone, product
from rebracket.testing.operators.recurrence import Case
from tests.backends.test_vectors import FILES, LIMITS, as_sample, check_vector, load

ROOT = Path(__file__).parents[4]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
ROW = Row(Case(), "chunk", None, "cpu")

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR) and LIBRARIES.is_dir()),
    reason=f"needs {COMPILER} and {EMULATOR}",
)


class Emulated:
    """Kernels in a process of another architecture; the tensors whose addresses were asked for go there and back."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.calls, self.answers = self.process.stdin, self.process.stdout
        self.memory: dict[int, int] = {}
        self.symbols: set[str] = set()

    def data_ptr(self, x: torch.Tensor, own: Callable[[torch.Tensor], int]) -> int:
        """The address of a tensor, whose memory is now known."""
        storage = x.untyped_storage()
        if storage.nbytes():
            self.memory[storage.data_ptr()] = storage.nbytes()
        return own(x)

    def kernel(self, name: str, structure: type[ctypes.Structure]) -> Callable[[Any], None]:
        return functools.partial(self.run, f"rebracket_{name}_{structure.__name__}_baseline")

    def run(self, symbol: str, call: Any) -> None:
        """One call; `call` is a reference to its structure."""
        self.symbols.add(symbol)
        structures = list(structures_of(call._obj))
        tensors = sorted(self.memory.items())
        self.give(struct.pack("<Q", len(symbol)), symbol.encode())
        self.give(struct.pack("<QQ", len(structures) + len(tensors), len(structures)))
        for address, size in (*structures, *tensors):
            self.give(struct.pack("<QQ", address, size), ctypes.string_at(address, size))
        self.calls.flush()
        (length,) = struct.unpack("<q", self.take(8))
        refusal = None if length < 0 else self.take(length).decode()
        for address, size in tensors:
            ctypes.memmove(address, self.take(size), size)
        self.memory.clear()
        if refusal is not None:
            raise ValueError(refusal)

    def give(self, *parts: bytes) -> None:
        for part in parts:
            self.calls.write(part)

    def take(self, size: int) -> bytes:
        taken = self.answers.read(size)
        assert len(taken) == size, "the emulated process has ended"
        return taken


def structures_of(structure: ctypes.Structure) -> Iterator[tuple[int, int]]:
    """The address and size of a structure, and of those that it points to."""
    yield ctypes.addressof(structure), ctypes.sizeof(structure)
    for name, kind, *_ in structure._fields_:
        if issubclass(kind, ctypes._Pointer):
            yield from structures_of(getattr(structure, name).contents)


@pytest.fixture(scope="module")
def process(tmp_path_factory) -> Iterator[Emulated]:
    folder = tmp_path_factory.mktemp("aarch64")
    build = ["setup.py", "-q", "build_ext", "--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, env={**os.environ, "CXX": COMPILER})
    driver, built = folder / "driver", folder / "lib" / library.FOLDER.relative_to(ROOT) / "kernels.so"
    subprocess.run(
        [COMPILER, "-O1", str(Path(__file__).with_name("driver.cpp")), "-o", str(driver), "-ldl"], check=True
    )
    emulated = Emulated(EMULATOR, "-L", str(LIBRARIES), str(driver), str(built))
    yield emulated
    emulated.process.kill()
    emulated.process.communicate()


@pytest.fixture
def emulated(process, monkeypatch) -> Emulated:
    """The kernels are those of the other architecture; what has been prepared for these is not used."""
    own = torch.Tensor.data_ptr
    process.memory.clear()
    process.symbols.clear()
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda x: process.data_ptr(x, own))
    monkeypatch.setattr(library, "kernel", process.kernel)
    return process


@pytest.mark.parametrize("file", FILES, ids=lambda x: x.stem)
def test_vectors(emulated, file):
    """Outputs, the final state and every gradient."""
    check_vector(lambda s: s.run(ROW), file, torch.float32)
    assert {"rebracket_forward_Call_baseline", "rebracket_backward_Backward_baseline"} <= emulated.symbols


@pytest.mark.parametrize("file", FILES, ids=lambda x: x.stem)
def test_steps(emulated, file):
    """The same outputs and state token by token, from a state of zeros where the file has none."""
    x, metadata = load(file)
    s = as_sample(x, metadata).to(torch.float32)
    if s.normalize or s.state is None:
        K, (H, V) = s.q.shape[3], s.v.shape[2:]
        s = replace(s, state=State.zeros(s.q.shape[0], H, K, V, key_sum=s.normalize))
    with torch.no_grad():
        out, state = s.run(replace(ROW, mode="step"))
    check("out", out, x["out"], LIMITS[torch.float32])
    check("final_state", state.memory, x["final_state"], LIMITS[torch.float32])
    one_write = metadata["writes"] == "1" and metadata["rule"] != "erase_pair"
    assert emulated.symbols == {f"rebracket_{'step' if one_write else 'forward'}_Call_baseline"}


NATIVE = [case for case in product(SHAPES, DTYPES) if case.dtype != torch.float64]


@pytest.mark.parametrize("case", NATIVE, ids=str)
def test_convolution(emulated, case: ConvolutionCase):
    """Outputs, the tail and the gradients against the formula in float64."""
    found = results(lambda s: s.run(replace(alone(case), backend="cpu")), case.draw())
    for name, exact in case.exact().items():
        check(name, found[name], exact, case.limit(name))
