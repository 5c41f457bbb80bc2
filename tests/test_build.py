"""The build of the CPU kernels: with a compiler, without one, and with one that only writes down what it was asked."""

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPU = Path("rebracket/backends/cpu")
LIBRARY = CPU / "kernels.so"

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names and tools are those of Linux")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

HEADER = """
#define NAME(isa) rebracket_width_##isa
#define NAMED(isa) NAME(isa)
"""
KERNEL = """
#include "tiny.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#define WIDTH 16
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#define WIDTH 8
#elif !defined(__AVX__)
#define WIDTH 4
#endif
extern "C" int NAMED(ISA)() { return WIDTH; }
"""
DISPATCH = """
#include "tiny.h"
#define VISIBLE extern "C" __attribute__((visibility("default")))
#define DECLARE(isa) extern "C" int NAMED(isa)();
ISAS(DECLARE)
#define TITLE(isa) #isa " "
#define ENTRY(isa) NAMED(isa),
static int (*const widths[])() = {ISAS(ENTRY)};
VISIBLE const char* rebracket_isas() { return ISAS(TITLE); }
VISIBLE int rebracket_width(int i) { return widths[i](); }
"""

# Stands in for a compiler: writes down its words, and makes empty files.
RECORDER = """
import json, sys
from pathlib import Path

words = sys.argv[2:]
with open("asked.jsonl", "a") as file:
    file.write(json.dumps(words) + "\\n")
if words == ["-dumpmachine"]:
    print(sys.argv[1])
else:
    Path(words[words.index("-o") + 1]).write_text("")
"""
# Stands before the compiler, and has it spend little on making code fast.
HASTE = """
import subprocess, sys
sys.exit(subprocess.run(["-O1" if word == "-O3" else word for word in sys.argv[1:]]).returncode)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what builds the package, with an empty package and kernels of a few lines."""
    return make_project(tmp_path / "project")


def make_project(folder: Path) -> Path:
    (folder / CPU / "csrc").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for package in (CPU, *CPU.parents[:-1]):
        (folder / package / "__init__.py").write_text("")
    for name, text in {"tiny.h": HEADER, "kernel.cpp": KERNEL, "dispatch.cpp": DISPATCH}.items():
        (folder / CPU / "csrc" / name).write_text(text)
    return folder


def python(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """What Python prints for these words; the build listens to no variable but the given ones."""
    inherited = {name: text for name, text in os.environ.items() if name not in {"CXX", "REBRACKET_SANITIZE"}}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=inherited | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(folder: Path, kind: str, environment: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """What pip does to a project: a file of the kind in dist/, and what was printed."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
    printed = python(folder, "-c", code, environment=environment)
    return folder / "dist" / printed.split()[-1], printed


def extensions(folder: Path, environment: Mapping[str, str]) -> str:
    return python(
        folder, "setup.py", "-q", "build_ext", "--build-lib=lib", "--build-temp=temp", environment=environment
    )


def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def exported(library: Path) -> list[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def needed(library: Path) -> list[str]:
    listed = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED +(\S+)", listed)


def shared_symbols(kernel: Path) -> list[str]:
    """Functions that the linker may take from any one object, whatever instructions it uses."""
    listed = subprocess.run(["nm", kernel], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines() if line.split()[-2] in {"V", "W", "u"}]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after a build that went well, whose remains a later one finds."""
    folder = make_project(tmp_path_factory.mktemp("built") / "project")
    wheel, printed = build(folder, "wheel")
    assert str(LIBRARY) in names(wheel)
    assert "reference backend" not in printed
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    archive, _ = build(make_project(folder / "project"), "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return build(folder / archive.name.removesuffix(".tar.gz"), "wheel")[0]


@pytest.fixture(scope="module")
def library(wheel: Path) -> Path:
    return Path(zipfile.ZipFile(wheel).extract(str(LIBRARY), wheel.parent))


@needs_compiler
def test_a_wheel_is_for_every_python_of_its_platform(wheel: Path):
    assert re.fullmatch(rf"rebracket-[\d.]+-py3-none-linux_{platform.machine()}\.whl", wheel.name)
    (metadata,) = (name for name in names(wheel) if name.endswith(".dist-info/WHEEL"))
    assert f"Tag: py3-none-linux_{platform.machine()}" in zipfile.ZipFile(wheel).read(metadata).decode()


@needs_compiler
def test_a_wheel_holds_the_library_and_not_its_sources(wheel: Path):
    held = [name for name in names(wheel) if "/cpu/" in name]
    assert sorted(held) == [str(CPU / "__init__.py"), str(LIBRARY)]


@needs_compiler
def test_each_set_is_compiled_with_its_own_instructions(library: Path):
    kernels = ctypes.CDLL(str(library))
    kernels.rebracket_isas.restype = ctypes.c_char_p
    isas = kernels.rebracket_isas().decode().split()
    widths = {isa: kernels.rebracket_width(i) for i, isa in enumerate(isas)}
    several = {"avx512": 16, "avx2": 8, "baseline": 4}
    assert widths == (several if platform.machine() == "x86_64" else {"baseline": 4})


@needs_compiler
def test_the_library_needs_only_libc_and_shows_only_its_doors(library: Path):
    assert sorted(exported(library)) == ["rebracket_isas", "rebracket_width"]
    assert [name for name in needed(library) if not name.startswith(("libc.so", "libm.so", "ld-linux"))] == []


@needs_compiler
@pytest.mark.parametrize("broken", [{"CXX": "false"}, {"CXX": "no-such-compiler"}, {"PATH": "/nowhere"}, {}])
def test_without_a_compiler_the_wheel_has_no_kernels_and_the_build_says_so_once(
    built: Path, tmp_path: Path, broken: dict[str, str]
):
    project = shutil.copytree(built, tmp_path / "project")
    if not broken:
        (project / CPU / "csrc/kernel.cpp").write_text("nonsense")
    bare, printed = build(project, "wheel", broken)
    assert [name for name in names(bare) if "/cpu/" in name] == [str(CPU / "__init__.py")]
    (said,) = (line for line in printed.splitlines() if "reference backend" in line)
    reason = broken.get("CXX", "no C++ compiler" if broken else Path(str(COMPILER)).name)
    assert f"{reason} " in said
    assert "install g++ or clang++" in said


@needs_compiler
def test_an_editable_install_keeps_the_library_beside_the_sources_and_no_older_one(project: Path):
    editable, _ = build(project, "editable")
    assert "-py3-none-linux_" in editable.name
    assert "rebracket_width" in exported(project / LIBRARY)
    build(project, "editable", {"CXX": "false"})
    assert not (project / LIBRARY).exists()


def asked(folder: Path, target: str, sanitize: str = "") -> tuple[list[list[str]], list[str]]:
    """The words a compiler for this target gets: for each of its compilations, and to link."""
    (folder / "recorder.py").write_text(RECORDER)
    command = f"'{sys.executable}' recorder.py {target}"
    extensions(folder, {"CXX": command, "REBRACKET_SANITIZE": sanitize})
    lines = [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]
    (link,) = (words for words in lines if "-shared" in words)
    return sorted(words for words in lines if "-c" in words), link


def isas(compilations: list[list[str]]) -> list[str]:
    return sorted(word.removeprefix("-DISA=") for words in compilations for word in words if word.startswith("-DISA="))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("x86_64-linux-gnu", ["avx2", "avx512", "baseline"]),
        ("aarch64-linux-gnu", ["baseline"]),
        ("riscv64-linux-gnu", ["baseline"]),
    ],
)
def test_the_target_of_the_compiler_decides_the_instruction_sets(project: Path, target: str, expected: list[str]):
    compilations, link = asked(project, target)
    assert isas(compilations) == expected
    assert len(compilations) == len(expected) + 1
    (dispatch,) = (words for words in compilations if str(CPU / "csrc/dispatch.cpp") in words)
    (listed,) = (word for word in dispatch if word.startswith("-DISAS(X)="))
    assert sorted(re.findall(r"X\((\w+)\)", listed.partition("=")[2])) == expected
    assert len([word for word in link if word.endswith(".o")]) == len(compilations)
    options = {word for words in compilations for word in words if word.startswith("-m")}
    assert bool(options) == target.startswith("x86_64")
    assert "-march=native" not in options


def test_sanitizers_reach_every_compilation_and_the_link(project: Path):
    compilations, link = asked(project, "x86_64-linux-gnu", "address,undefined")
    for words in compilations:
        assert "-fsanitize=address,undefined" in words
        assert words.index("-O1") > words.index("-O3")
    assert "-fsanitize=address,undefined" in link
    plain, _ = asked(make_project(project / "plain"), "x86_64-linux-gnu")
    assert [word for words in plain for word in words if "sanitize" in word] == []


PLANTED = """
#include "tiny.h"
#include <cstdlib>
extern "C" int NAMED(ISA)() {
    volatile int* row = static_cast<int*>(std::malloc(4 * sizeof(int)));
    for (int i = 0; i < 4; ++i) row[i] = i;
    int found = row[PLACE];
    std::free(const_cast<int*>(row));
    return found;
}
"""


@needs_compiler
@pytest.mark.parametrize(("place", "reported"), [("3", False), ("4", True)])
def test_a_planted_read_beyond_the_end_is_reported(project: Path, place: str, reported: bool):
    finder = [str(COMPILER), "-print-file-name=libasan.so"]
    runtime = subprocess.run(finder, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler has no sanitizers")
    (project / CPU / "csrc/kernel.cpp").write_text(PLANTED.replace("PLACE", place))
    extensions(project, {"REBRACKET_SANITIZE": "address,undefined"})
    code = f"import ctypes; ctypes.CDLL('lib/{LIBRARY}').rebracket_width(0)"
    environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == reported, done.stderr
    assert ("kernel.cpp:7" in done.stderr) == reported


PLANTED_KERNEL = """
#include "check.h"

struct Planted {
    int32_t many;
    int64_t T;
};

LAYOUT(Planted, AT(many), AT(T))
KERNEL(planted, Planted) { return refuse("planted got T = %lld", call.T); }
"""
# Its caller, which is the second of two files.
CALLER = """
import ctypes
from rebracket.backends.cpu import library

class Planted(ctypes.Structure):
    _fields_ = (("many", ctypes.c_int32), ("T", ctypes.c_int64))

for isa in library.isas():
    try:
        library.with_isa(isa).kernel("planted", Planted)(ctypes.byref(Planted(1, 41)))
    except ValueError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package's own kernels were built in haste, and one more: a file."""
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "rebracket", folder / "rebracket", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    sources = folder / CPU / "csrc"
    (sources / "planted.cpp").write_text(PLANTED_KERNEL)
    (folder / "haste.py").write_text(HASTE)
    printed = extensions(folder, {"CXX": f"'{sys.executable}' haste.py {COMPILER}"})
    assert "reference backend" not in printed, printed
    return folder


@needs_compiler
def test_the_kernels_need_nothing_of_torch_or_python_and_show_only_their_doors(kernels: Path):
    library = kernels / "lib" / LIBRARY
    allowed = re.compile(r"(lib(c|m|stdc\+\+|gcc_s)|ld-linux[\w-]*)\.so")
    assert [name for name in needed(library) if not allowed.match(name)] == []
    names = {f"rebracket_{name}_baseline" for name in ("planted_Planted", "layout_Planted", "step_Call", "layout_Call")}
    assert names <= set(exported(library))
    assert [name for name in exported(library) if not name.startswith("rebracket_")] == []


@needs_compiler
def test_a_new_kernel_is_a_file_and_its_caller(kernels: Path):
    (kernels / "caller.py").write_text(CALLER)
    printed = python(kernels, "caller.py", environment={"REBRACKET_KERNELS": str(kernels / "lib" / LIBRARY)})
    lines = printed.splitlines()
    assert set(lines) == {"planted got T = 41"}
    assert len(lines) <= 3


@needs_compiler
def test_no_function_of_one_instruction_set_can_serve_another(kernels: Path):
    objects = sorted((kernels / "temp").rglob("*.o"))
    assert len(objects) >= 4
    assert {file.name: shared_symbols(file) for file in objects if shared_symbols(file)} == {}


@needs_compiler
def test_a_planted_shared_function_is_found(project: Path):
    source = project / CPU / "csrc/kernel.cpp"
    source.write_text(source.read_text() + "\n__attribute__((used)) inline int shared() { return 1; }")
    extensions(project, {})
    found = [shared_symbols(file) for file in (project / "temp").rglob("kernel-*.o")]
    assert found
    assert all(symbols == ["_Z6sharedv"] for symbols in found)
