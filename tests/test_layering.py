"""Imports point down, siblings of an open folder do not know each other, optional libraries stay in their corners."""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import pytest

PACKAGE = Path(__file__).parents[1] / "rebracket"
ROOT = PACKAGE.name

LAYERS = {
    "base": 0,
    "ops": 1,
    "backends": 2,
    "features": 2,
    "distributed": 2,
    "testing": 2,
    "nn": 3,
    "lm": 4,
    "bench": 5,
    "data": 5,
    "train": 5,
    "serve": 5,
    "integrations": 6,
    "lab": 6,
    "cli": 6,
}
OPEN = (
    "ops.writes",
    "backends",
    "features",
    "testing.operators",
    "nn.decays",
    "nn.presets",
    "nn.writes",
    "bench.cases",
    "bench.models",
    "bench.peers",
    "integrations",
    "lab",
    "cli",
)
# What the root may import: the operator, and the folder that registers the backends with it.
FACADE = ("rebracket.ops", "rebracket.backends")

CORE = {ROOT, "torch", "numpy", "safetensors"}
# Further libraries and the corners that may import them: anywhere in a module, or only inside functions.
EAGER = {
    "click": ("cli",),
    "jinja2": ("lab.base.page",),
    "rich": ("cli",),
    "triton": ("backends.triton",),
    "typer": ("cli",),
}
LAZY = {
    "fast_transformers": ("bench.peers",),
    "fastapi": ("serve",),
    "fla": ("integrations",),
    "gguf": ("bench.models",),
    "httpx": ("serve",),
    "hypothesis": ("testing",),
    "jax": ("bench.peers",),
    "matplotlib": ("bench", "train", "lab", "cli"),
    "onnx": ("bench.peers",),
    "onnxruntime": ("bench.peers",),
    "pydantic": ("serve",),
    "pytest": ("testing",),
    "ray": ("lab.base.cluster",),
    "rich": ("base.progress", "bench", "lab", "serve"),
    "sse_starlette": ("serve",),
    "starlette": ("serve",),
    "tensorboard": ("train",),
    "tokenizers": ("lm.tokenizer",),
    "torch.utils.tensorboard": ("train",),
    "transformers": ("bench.models", "bench.peers", "integrations"),
    "uvicorn": ("serve",),
    "xllamacpp": ("bench.models",),
}


@dataclass(frozen=True)
class Import:
    """One module that another uses: where, whether not at the import of the first, and whether by a string."""

    module: str
    target: str
    line: int
    lazy: bool
    string: bool = False


def sources(package: Path) -> dict[str, str]:
    """The text of every module of a package by its dotted name."""
    return {dotted(path.relative_to(package.parent)): path.read_text("utf-8") for path in package.rglob("*.py")}


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: str, text: str, modules: set[str]) -> Iterator[Import]:
    for node, lazy in walk(ast.parse(text), lazy=False):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            members = [f"{base}.{alias.name}" for alias in node.names]
            yield from (Import(module, x if known(x, modules) else base, node.lineno, lazy) for x in members)
        elif isinstance(node, ast.Constant) and names_module(node.value, modules):
            yield Import(module, node.value.rstrip("."), node.lineno, lazy=True, string=True)


def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below one, and whether it is left out when the module is imported."""
    for child in ast.iter_child_nodes(node):
        yield child, lazy
        yield from walk(child, lazy or defers(child))


def defers(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def known(name: str, modules: set[str]) -> bool:
    """Whether a name is a module rather than something in one; outside the package only submodules with rules count."""
    return name in modules or name in LAZY


def names_module(value: object, modules: set[str]) -> TypeGuard[str]:
    """Whether a string is the name of a module of the package, or begins one ("rebracket.features.")."""
    return isinstance(value, str) and value.startswith(ROOT + ".") and value.rstrip(".") in modules


def within(module: str, *folders: str) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def inside(module: str, *corners: str) -> bool:
    return within(module, *(f"{ROOT}.{corner}" for corner in corners))


def part(module: str) -> str:
    """The package below the root that a module belongs to; "" for the root itself."""
    return [*module.split("."), ""][1]


def upward(found: Import) -> str | None:
    here, there = part(found.module), part(found.target)
    if not within(found.target, ROOT):
        return None
    if here == "":
        return None if within(found.target, *FACADE) else "the root names what ops/ offers and nothing above it"
    if there == "":
        return "ops/ is what the root is made of" if here == "ops" else None
    if LAYERS[there] > LAYERS[here]:
        return f"upward: {here}/ is layer {LAYERS[here]}, {there}/ is layer {LAYERS[there]}"
    return None


def sibling(found: Import) -> str | None:
    for folder in (f"{ROOT}.{name}" for name in OPEN):
        if not within(found.target, folder) or found.target == folder or within(found.target, f"{folder}.base"):
            continue
        if found.module == folder:
            return f"{folder} names one of its own members; the file name is the registration"
        if within(found.module, folder) and not within(found.module, member(found.target, folder)):
            return f"sibling: members of {folder} do not import each other"
    return None


def member(module: str, folder: str) -> str:
    """The file or folder directly in an open folder that holds a module."""
    return folder + "." + module.removeprefix(folder + ".").partition(".")[0]


def corner(found: Import) -> str | None:
    library = next((x for x in LAZY | EAGER if within(found.target, x) and x != "torch"), None)
    if library is None:
        top = found.target.partition(".")[0]
        return None if top in CORE or top in sys.stdlib_module_names else f"{top} is not a dependency of the package"
    eager, lazy = EAGER.get(library, ()), LAZY.get(library, ())
    if inside(found.module, *eager) or (found.lazy and inside(found.module, *lazy)):
        return None
    if inside(found.module, *lazy):
        return f"not lazy: {library} is imported inside the function that uses it"
    return f"outside its corner: {library} belongs in {', '.join(eager + lazy)}"


def relative(found: Import) -> str | None:
    return "relative: write the full name" if found.target.startswith(".") else None


def rooms(modules: Mapping[str, str]) -> Iterator[str]:
    for module in modules:
        if part(module) and part(module) not in LAYERS:
            yield f"{module}: {part(module)}/ has no layer"


def circles(found: list[Import]) -> Iterator[str]:
    """Packages of one layer may use each other in one direction only."""
    edges: dict[str, set[str]] = {}
    for x in found:
        here, there = part(x.module), part(x.target)
        if within(x.target, ROOT) and here != there and LAYERS.get(here) == LAYERS.get(there):
            edges.setdefault(here, set()).add(there)
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        yield f"circle: {' -> '.join(error.args[1])}"


def breaches(modules: Mapping[str, str]) -> list[str]:
    """What the sources of a package (dotted name to text) do against the rules, one line each."""
    unplaced = list(rooms(modules))
    if unplaced:
        return unplaced
    found = [x for module, text in sorted(modules.items()) for x in imports(module, text, set(modules))]
    broken = [
        f"{x.module}:{x.line}: {x.target}: {fault}"
        for x in found
        for fault in [relative(x) or upward(x) or sibling(x) or (None if x.string else corner(x))]
        if fault
    ]
    return [*broken, *circles(found)]


def test_the_package_keeps_its_layers():
    assert breaches(sources(PACKAGE)) == []


def test_the_reader_sees_the_package():
    found = sources(PACKAGE)
    assert f"{ROOT}.ops.attention" in found
    assert [x for module, text in found.items() for x in imports(module, text, set(found)) if x.target == "torch"]


CLEAN = {
    "rebracket": "import rebracket.backends\nfrom rebracket.ops.attention import step",
    "rebracket.ops": "",
    "rebracket.ops.attention": "import math\nimport torch\nfrom rebracket.ops import writes",
    "rebracket.ops.writes": "",
    "rebracket.ops.writes.delta": "from rebracket.ops import attention",
    "rebracket.ops.writes.additive": "",
    "rebracket.backends": "",
    "rebracket.backends.reference": "from rebracket.backends.reference import definition",
    "rebracket.backends.reference.definition": "",
    "rebracket.backends.cpu": "from rebracket.ops import attention",
    "rebracket.backends.triton": "",
    "rebracket.backends.triton.forward": "import triton\nimport triton.language as tl",
    "rebracket.features": 'def make(name):\n    return importlib.import_module(f"rebracket.features.{name}")',
    "rebracket.features.base": "from torch import nn",
    "rebracket.features.exp": "from rebracket.features.base import FeatureMap",
    "rebracket.features.relu": "from rebracket.features import base",
    "rebracket.testing": "import rebracket as rb",
    "rebracket.lab": "from rebracket.lab.base.experiment import Experiment",
    "rebracket.lab.base": "",
    "rebracket.lab.base.experiment": "from rebracket.lab.base import verdict",
    "rebracket.lab.base.verdict": "",
    "rebracket.lab.recall": "from rebracket.lab.base.experiment import Experiment",
    "rebracket.nn": "",
    "rebracket.nn.presets": "",
    "rebracket.nn.presets.gla": "from rebracket.nn import attention",
    "rebracket.nn.presets.kda": "",
    "rebracket.nn.attention": "from rebracket import features, linear_attention",
    "rebracket.lm": "",
    "rebracket.lm.tokenizer": "if TYPE_CHECKING:\n    import tokenizers\ndef train():\n    import tokenizers",
    "rebracket.bench": "from rebracket.ops import attention",
    "rebracket.bench.peers": "from rebracket import bench",
    "rebracket.bench.peers.jax_scan": "def prepare():\n    import jax",
    "rebracket.bench.peers.fla_naive": "",
    "rebracket.data": "import numpy as np\nfrom rebracket.lm import tokenizer",
    "rebracket.train": "from rebracket import data\ndef curve():\n    from matplotlib import pyplot",
    "rebracket.integrations": "",
    "rebracket.integrations.transformers": "def register():\n    import transformers",
    "rebracket.cli": "def main():\n    import typer",
    "rebracket.cli.train": "import typer\nfrom rebracket.train import curve",
    "rebracket.cli.modes": "from rich.table import Table",
}

FAULTS = {
    "up one layer": ("ops.attention", "from rebracket.nn.attention import LinearAttention", "upward"),
    "up, naming the package": ("nn.attention", "from rebracket import lm", "upward"),
    "up, by a plain import": ("nn.attention", "import rebracket.lm.tokenizer", "upward"),
    "up, inside a function": ("nn.attention", "def f():\n    import rebracket.lm", "upward"),
    "up, for types only": ("ops.attention", "if TYPE_CHECKING:\n    from rebracket.nn import attention", "upward"),
    "up, by a string": ("lm.tokenizer", 'importlib.import_module("rebracket.cli.train")', "upward"),
    "up, by half a string": ("nn.attention", 'importlib.import_module(f"rebracket.cli.{verb}")', "upward"),
    "a backend named in ops": ("ops.attention", 'F = "rebracket.backends"', "upward"),
    "ops through the root": ("ops.attention", "import rebracket", "what the root is made of"),
    "the root grows": ("", "from rebracket.nn import attention", "the root names"),
    "relative": ("nn.attention", "from . import presets", "relative"),
    "a rule uses another": ("ops.writes.delta", "from rebracket.ops.writes.additive import Additive", "sibling"),
    "a map uses another": ("features.exp", "from rebracket.features import relu", "sibling"),
    "a preset uses another": ("nn.presets.gla", "import rebracket.nn.presets.kda", "sibling"),
    "a peer uses another": ("bench.peers.jax_scan", "import rebracket.bench.peers.fla_naive", "sibling"),
    "an experiment uses another": ("lab.state", "from rebracket.lab.recall import Recall", "sibling"),
    "what they share uses one": ("lab.base.verdict", "from rebracket.lab import recall", "sibling"),
    "a verb uses another": ("cli.modes", "def f():\n    from rebracket.cli import train", "sibling"),
    "fast imports reference": ("backends.cpu", "from rebracket.backends.reference import definition", "sibling"),
    "kernel imports reference": ("backends.triton.forward", "import rebracket.backends.reference", "sibling"),
    "reference imports fast": ("backends.reference.definition", "import rebracket.backends.cpu", "sibling"),
    "a folder lists a member": ("features", "from rebracket.features import exp", "registration"),
    "triton elsewhere": ("nn.attention", "def f():\n    import triton", "outside its corner"),
    "jax elsewhere": ("bench", "def f():\n    import jax", "outside its corner"),
    "a peer's library at once": ("bench.peers.jax_scan", "import jax", "not lazy"),
    "transformers elsewhere": ("lm.tokenizer", "def f():\n    import transformers", "outside its corner"),
    "matplotlib elsewhere": ("nn.attention", "def f():\n    import matplotlib.pyplot as plt", "outside its corner"),
    "http elsewhere": ("cli.train", "def f():\n    import uvicorn", "outside its corner"),
    "transformers at once": ("integrations.transformers", "import transformers", "not lazy"),
    "matplotlib at once": ("train", "from matplotlib import pyplot", "not lazy"),
    "tokenizers at once": ("lm.tokenizer", "try:\n    import tokenizers\nexcept ImportError: pass", "not lazy"),
    "tensorboard at once": ("train", "from torch.utils import tensorboard", "not lazy"),
    "a class body is at once": ("train", "class A:\n    import matplotlib", "not lazy"),
    "a new dependency": ("ops.attention", "def f():\n    import einops", "not a dependency"),
    "a circle in one layer": ("data", "from rebracket.train import curve", "circle"),
    "a package without a layer": ("utils", "", "no layer"),
}


def test_clean_sources_have_no_breach():
    assert breaches(CLEAN) == []


@pytest.mark.parametrize(("where", "line", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_found(where: str, line: str, fault: str):
    module = f"{ROOT}.{where}".rstrip(".")
    (found,) = breaches(CLEAN | {module: f"{CLEAN.get(module, '')}\n{line}\n"})
    assert fault in found
