"""`import rebracket` needs torch, numpy and safetensors, and loads nothing else that is heavy."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rebracket"
OPTIONAL = (
    "beartype",
    "click",
    "fastapi",
    "httpx",
    "hypothesis",
    "jaxtyping",
    "matplotlib",
    "pydantic",
    "pytest",
    "rich",
    "sse_starlette",
    "tensorboard",
    "tokenizers",
    "transformers",
    "triton",
    "typer",
    "uvicorn",
)
# What a command line or a kernel needs at once is imported when the command or the kernel is, never before.
CORNERS = ("rebracket.cli", "rebracket.backends.triton")

FORBID = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is forbidden here")

sys.meta_path.insert(0, Forbid())
"""

TIMED = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import rebracket
print(f"import rebracket: {time.perf_counter() - middle:.2f} s beyond torch's {middle - start:.2f} s")
"""


def run(code: str, folder: Path, forbidden: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh process that starts in `folder` and cannot import some libraries."""
    program = FORBID.format(names=tuple(forbidden)) + code
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)


def modules(package: Path) -> list[str]:
    """The dotted name of every module of a package."""
    files = sorted(package.rglob("*.py"))
    return [".".join(f.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__") for f in files]


def unpackaged(package: Path) -> list[str]:
    """Folders that hold code but no __init__.py: an installation would leave them out."""
    bare = {file.parent for file in package.rglob("*.py") if not file.with_name("__init__.py").exists()}
    return sorted(str(folder.relative_to(package.parent)) for folder in bare)


def test_the_package_imports_without_any_optional_library():
    done = run("import rebracket", ROOT, OPTIONAL)
    assert done.returncode == 0, done.stderr


def test_every_module_outside_the_corners_imports_without_them_too():
    names = [name for name in modules(PACKAGE) if not name.startswith(CORNERS)]
    assert "rebracket.ops.attention" in names
    done = run("import " + ", ".join(names), ROOT, OPTIONAL)
    assert done.returncode == 0, done.stderr


def test_every_folder_is_packaged():
    assert unpackaged(PACKAGE) == []


def test_the_time_of_an_import_is_reported(record_property: Callable[[str, object], None]):
    done = run(TIMED, ROOT)
    assert done.returncode == 0, done.stderr
    assert "s beyond torch's" in done.stdout
    record_property("import", done.stdout.strip())


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A package of three modules, one of which imports matplotlib at once and one when asked."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted/__init__.py").write_text("")
    (tmp_path / "planted/eager.py").write_text("from matplotlib import pyplot")
    (tmp_path / "planted/lazy.py").write_text("def draw():\n    import matplotlib")
    return tmp_path


def test_a_planted_import_is_found(planted: Path):
    assert modules(planted / "planted") == ["planted", "planted.eager", "planted.lazy"]
    assert run("import planted, planted.lazy", planted, OPTIONAL).returncode == 0
    done = run("import planted.eager", planted, OPTIONAL)
    assert done.returncode == 1
    assert "matplotlib is forbidden here" in done.stderr
    assert run("import planted.lazy; planted.lazy.draw()", planted, OPTIONAL).returncode == 1


def test_each_library_is_forbidden(tmp_path: Path):
    attempt = "try:\n    import {0}.x\nexcept ImportError as error:\n    print(error)"
    done = run("\n".join(attempt.format(library) for library in OPTIONAL), tmp_path, OPTIONAL)
    assert done.stdout.splitlines() == [f"{library} is forbidden here" for library in OPTIONAL]


def test_a_planted_folder_without_init_is_found(planted: Path):
    assert unpackaged(planted / "planted") == []
    (planted / "planted/__init__.py").unlink()
    assert unpackaged(planted / "planted") == ["planted"]
