"""The public names are frozen and each shows itself at work; the code keeps to its style."""

import ast
import importlib
import inspect
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

PACKAGE = Path(__file__).parents[1] / "rebracket"
KERNELS = ("backends/cpu", "backends/triton")

PUBLIC = {
    "Additive",
    "AssociativeMemory",
    "Delta",
    "DeltaProduct",
    "GatedErase",
    "KeyValues",
    "LowRank",
    "Output",
    "Plan",
    "ReadKey",
    "Segment",
    "State",
    "Stepper",
    "compose",
    "explain",
    "linear_attention",
    "scan",
    "softmax_attention",
    "step",
}


FULLY = ("rebracket", "rebracket.lm", "rebracket.nn")
"""The packages whose public names are described in full."""
BRIEFLY = tuple(f"rebracket.{name}" for name in ("bench", "data", "train"))
"""Those whose public names need one sentence."""


def public(module: ModuleType | SimpleNamespace) -> dict[str, object]:
    """What a module offers: names without a leading underscore that are not modules."""
    return {k: x for k, x in vars(module).items() if not k.startswith("_") and not inspect.ismodule(x)}


def undocumented(names: Mapping[str, object]) -> Iterator[str]:
    """Sections that the docstrings of public classes and functions lack."""
    for name, value in names.items():
        if isinstance(value, type) or inspect.isfunction(value):
            yield from (f"{name}: no {section}" for section in needed(value) if f"{section}:\n" not in described(value))


def needed(value: Callable[..., object]) -> Iterator[str]:
    """The sections that a docstring has to have: Args where there are any, Returns where something is."""
    signature = inspect.signature(value)
    if any(x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD) for x in signature.parameters.values()):
        yield "Args"
    if not isinstance(value, type):
        yield from ("Cost",) if signature.return_annotation in (None, "None") else ("Returns", "Cost")
    yield "Example"


def described(value: object) -> str:
    """The docstring; a generator yields what it returns, and what a cost is may stand on its line."""
    text = (value.__doc__ or "").replace("Yields:\n", "Returns:\n").replace("Cost: ", "Cost:\n")
    return text if ">>>" in text else text.replace("Example:\n", "")


def unsaid(names: Mapping[str, object]) -> list[str]:
    """Public classes and functions whose docstring does not begin with a sentence; what dataclasses write is none."""
    values = {name: x for name, x in names.items() if isinstance(x, type) or inspect.isfunction(x)}
    first = {name: (x.__doc__ or "").partition("\n\n")[0].strip() for name, x in values.items()}
    return [name for name, text in first.items() if not (text.endswith(".") and " " in text)]


def bare_methods(kind: type) -> Iterator[str]:
    for name in vars(kind):
        inherited = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
        described = [x for x in inherited if not callable(x) or inspect.getdoc(x)]
        if not name.startswith("_") and not described:
            yield name


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (x for x in ast.walk(ast.parse(text)) if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef)))


def swallowing(text: str) -> list[int]:
    """Lines of the functions and lambdas that take **kwargs."""
    takers = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return [x.lineno for x in ast.walk(ast.parse(text)) if isinstance(x, takers) and x.args.kwarg]


def probing(text: str) -> list[int]:
    """Lines that ask an object what it has instead of knowing what it is."""
    calls = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)]
    return [x.lineno for x in calls if isinstance(x.func, ast.Name) and x.func.id == "hasattr"]


def open_classes(text: str) -> list[str]:
    """Classes that are neither final nor abstract, so that a reader cannot know what an instance is."""
    classes = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.ClassDef)]
    return [x.name for x in classes if not {"final", "ABC", "Protocol", "NamedTuple", "abstractmethod"} & marks(x)]


def marks(kind: ast.ClassDef) -> set[str]:
    """The names of a class's decorators and bases, and of its methods' decorators."""
    marked = [*kind.decorator_list, *kind.bases, *(x for f in functions(ast.unparse(kind)) for x in f.decorator_list)]
    return {ast.unparse(x).rpartition(".")[2] for x in marked}


def lengths(text: str) -> list[int]:
    """Lines of each function's body, its docstring aside."""
    return [length(function) for function in functions(text)]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def sources(package: Path) -> dict[str, str]:
    return {str(f.relative_to(package)): f.read_text("utf-8") for f in sorted(package.rglob("*.py"))}


def test_the_public_names_are_these():
    rebracket = importlib.import_module("rebracket")
    assert set(public(rebracket)) == PUBLIC
    assert set(rebracket.__all__) == PUBLIC


@pytest.mark.parametrize("package", FULLY)
def test_every_public_name_is_described_and_shows_itself_at_work(package: str):
    module = importlib.import_module(package)
    assert list(undocumented({name: getattr(module, name) for name in module.__all__})) == []


@pytest.mark.parametrize("package", BRIEFLY)
def test_every_other_public_name_says_what_it_is(package: str):
    module = importlib.import_module(package)
    assert unsaid({name: getattr(module, name) for name in module.__all__}) == []


def test_every_public_method_has_a_docstring():
    names = public(importlib.import_module("rebracket"))
    assert {name: bare for name, x in names.items() if isinstance(x, type) and (bare := list(bare_methods(x)))} == {}


def test_no_function_swallows_arguments():
    assert {file: lines for file, text in sources(PACKAGE).items() if (lines := swallowing(text))} == {}


def test_nothing_probes_for_attributes():
    assert {file: lines for file, text in sources(PACKAGE).items() if (lines := probing(text))} == {}


def test_every_class_is_final_or_abstract():
    assert {file: names for file, text in sources(PACKAGE).items() if (names := open_classes(text))} == {}


def test_functions_are_short():
    plain = [text for file, text in sources(PACKAGE).items() if not file.startswith(KERNELS)]
    found = [n for text in plain for n in lengths(text)]
    assert len(found) > 100
    assert statistics.median(found) < 10


class Planted:
    """A class with an example.

    Example:
        >>> Planted.__name__
        'Planted'
    """

    size = 3

    def described(self):
        """Says what it does."""

    def bare(self): ...


@dataclass
class Point:
    x: int


class Heir(Planted):
    def described(self): ...


def test_a_planted_public_name_is_found():
    module = SimpleNamespace(_private=1, ast=ast, step=len, extra=Planted)
    assert set(public(module)) == {"step", "extra"}


def test_planted_docstrings_are_found():
    def silent(x): ...

    def told(x: int) -> Iterator[int]:
        """Tells.

        Args:
            x: a number.

        Yields:
            It.

        Cost: none.

        Example:
            With words only.
        """
        yield x

    def nothing() -> None:
        """Does nothing.

        Cost: none.

        Example:
            >>> nothing()
        """

    names = {"silent": silent, "told": told, "nothing": nothing, "Planted": Planted, "Heir": Heir, "value": 3}
    assert list(undocumented(names)) == [
        *(f"silent: no {section}" for section in ("Args", "Returns", "Cost", "Example")),
        "told: no Example",
        "Heir: no Example",
    ]
    assert [list(bare_methods(kind)) for kind in (Planted, Heir)] == [["bare"], []]
    assert unsaid({**names, "Point": Point}) == ["silent", "told", "Heir", "Point"]


def test_every_package_that_says_what_it_offers_is_looked_at():
    files = [path for path in PACKAGE.rglob("__init__.py") if "\n__all__ = " in path.read_text("utf-8")]
    found = {".".join(path.relative_to(PACKAGE.parent).parent.parts) for path in files}
    assert {name for name in found if not name.startswith("rebracket.backends.")} == {*FULLY, *BRIEFLY}


@pytest.mark.parametrize(
    "text",
    ["def f(x, **kwargs): ...", "class A:\n async def f(self, **options): ...", "g = lambda **k: k"],
)
def test_planted_kwargs_are_found(text: str):
    assert len(swallowing(text)) == 1


def test_what_is_no_kwargs_passes():
    assert swallowing("def f(*args, a=1, b=2): return g(**{'a': a})") == []


def test_planted_probing_is_found():
    assert probing("x = 1\nif hasattr(x, 'y'):\n    x.hasattr()") == [2]


@pytest.mark.parametrize("text", ["class A: ...", "class A(Module):\n def f(self): ...", "@dataclass\nclass A: ..."])
def test_a_planted_open_class_is_found(text: str):
    assert open_classes(text) == ["A"]
    assert open_classes(f"@final\n{text}") == []
    assert open_classes(f"@typing.final\n{text}") == []


@pytest.mark.parametrize("text", ["class A(ABC): ...", "class A:\n @abstractmethod\n def f(self): ..."])
def test_abstract_classes_pass(text: str):
    assert open_classes(text) == []


def test_lengths_are_of_bodies():
    text = 'def f():\n  """Doc.\n\n  More."""\n  a = 1\n\n  return a\n'
    text += 'class A:\n  def g(self): return 2\n  def h(self): "Doc."\n'
    assert lengths(text) == [3, 1, 0]
    assert statistics.median(lengths("def f():\n" + "  x = 1\n" * 12)) == 12
