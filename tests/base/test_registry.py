"""A file is registered by being there, and a mistyped name is answered with the nearest."""

import importlib
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType

import pytest

from rebracket.base.registry import Registry, nearest, only, options


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "orchard").mkdir()
    files = {"__init__": "", "base": "", "pear": "def taste(): return 'sweet'", "apple": "raise ImportError"}
    for name, text in files.items():
        (tmp_path / f"orchard/{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "orchard"
    for name in [name for name in sys.modules if name.startswith("orchard")]:
        del sys.modules[name]


def test_a_new_file_is_a_new_name(orchard: str):
    fruit = Registry(orchard, "fruit", "taste")
    assert fruit.names() == ("apple", "pear")
    assert fruit.load("pear")() == "sweet"
    assert "orchard.apple" not in sys.modules
    with pytest.raises(ValueError, match=r"fruit 'peer' is unknown, did you mean 'pear'\?; known are apple, pear"):
        fruit.load("peer")
    with pytest.raises(ValueError, match="fruit 'base' is unknown"):
        fruit.load("base")


def test_the_one_class_of_a_kind_is_found():
    class Fruit(ABC):
        @abstractmethod
        def taste(self) -> str: ...

    module = ModuleType("garden")
    made = {"__module__": "garden", "taste": lambda self: "sweet"}
    module.Pear, module.Fruit = type("Pear", (Fruit,), made), Fruit  # type: ignore[attr-defined]
    module.Citrus = type("Citrus", (Fruit,), {"__module__": "garden"})  # type: ignore[attr-defined]
    assert only(module, Fruit) is module.Pear  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"empty must define one Fruit, found \[\]"):
        only(ModuleType("empty"), Fruit)
    module.Plum = type("Plum", (Fruit,), made)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"found \['Pear', 'Plum'\]"):
        only(module, Fruit)


def test_options_are_what_has_a_default():
    def build(size, *, width=4, name="pear"): ...

    assert {name: x.default for name, x in options(build).items()} == {"width": 4, "name": "pear"}


def test_the_nearest_is_named_and_all_are():
    assert nearest("peer", ("apple", "pear")) == ", did you mean 'pear'?; known are apple, pear"


def test_nothing_near_is_not_named():
    assert nearest("xylophone", {"pear": 1}) == "; known are pear"
    assert nearest("pear", []) == "; known are none"
