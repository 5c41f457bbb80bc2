"""Builds the CPU kernels: one shared library of plain C functions that needs neither Python nor torch.

Every source is compiled once for each instruction set, with ISA its name; dispatch.cpp is compiled once, with ISAS(X)
applying the macro X to each name, and chooses among them on the machine it runs on. Without a C++ compiler the package
installs all the same. REBRACKET_SANITIZE=address,undefined builds the library with these sanitizers.
"""

import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("rebracket/backends/cpu/csrc")
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")

FALLBACK = (
    "the reference backend will run in place of the CPU kernels; "
    "to get them, install g++ or clang++, or name a compiler in CXX, "
    "then install rebracket again with --force-reinstall --no-deps --no-cache-dir"
)

# The options of each instruction set, best set first; dispatch.cpp asks the processor for all that these switch on.
X86 = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"],
    "avx2": ["-mavx2", "-mfma"],
    "baseline": [],
}
OTHERS = {"baseline": []}  # on aarch64 this is NEON

COMPILE = [
    *("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-exceptions", "-fno-rtti"),
    *("-fPIC", "-fvisibility=hidden"),
]
# A program's bits may not depend on which products and sums the compiler makes one; it says so itself where they are.
OF_SOURCE = {"program.cpp": ["-ffp-contract=off"]}
LINK = ["-shared", "-pthread", "-Wl,--as-needed"] if sys.platform == "linux" else ["-shared", "-pthread"]


def compiler() -> list[str]:
    """The words of the command that compiles C++."""
    if command := shlex.split(os.environ.get("CXX", "")):
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileError("no C++ compiler was found")


def sanitizers() -> list[str]:
    """Further options for the sanitizers that are asked for."""
    if names := os.environ.get("REBRACKET_SANITIZE"):
        return ["-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={names}", "-fno-sanitize-recover=all"]
    return []


def units(target: str, sources: list[Path]) -> list[tuple[Path, str, list[str]]]:
    """What is compiled for a target: the source, the name of the object, the options that are its own."""
    isas = X86 if target.startswith("x86_64") else OTHERS
    every = "ISAS(X)=" + " ".join(f"X({isa})" for isa in isas)
    kernels = [source for source in sources if source.name != "dispatch.cpp"]
    own = {source: OF_SOURCE.get(source.name, []) for source in kernels}
    compiled = [(s, f"{s.stem}-{isa}.o", [*isas[isa], *own[s], f"-DISA={isa}"]) for isa in isas for s in kernels]
    return [*compiled, (SOURCES / "dispatch.cpp", "dispatch.o", [f"-D{every}"])]


def run(*command: str) -> str:
    """What a command prints; its errors go where ours go."""
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"{command[0]} did not work") from error


def build(library: Path, objects: Path, sources: list[Path]) -> None:
    """Compiles the sources side by side and links them."""
    command, sanitize = compiler(), sanitizers()

    def compiled(unit: tuple[Path, str, list[str]]) -> str:
        source, name, options = unit
        to = str(objects / name)
        run(*command, *COMPILE, *sanitize, *options, "-c", str(source), "-o", to)
        return to

    target = run(*command, "-dumpmachine")
    objects.mkdir(parents=True, exist_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        linked = list(pool.map(compiled, units(target, sources)))
    run(*command, *LINK, *sanitize, *linked, "-o", str(library))


class BuildKernels(build_ext):
    """Builds the library in place of an extension module; it may fail, for setuptools then warns and goes on."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + SUFFIX

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # an older one must not pass for this one
        try:
            build(library, Path(self.build_temp), [Path(source) for source in ext.sources])
        except CompileError as error:
            raise CompileError(f"{error}: {FALLBACK}") from error

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            Path(self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()


class Wheel(bdist_wheel):
    """A wheel for every Python of one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
    ext_modules=[
        Extension(
            "rebracket.backends.cpu.kernels",
            sources=sorted(map(str, SOURCES.glob("*.cpp"))),
            depends=sorted(map(str, SOURCES.glob("*.h"))),  # for the sdist, which takes these along
            optional=True,
        )
    ],
)
