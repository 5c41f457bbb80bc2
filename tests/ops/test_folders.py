"""A file is registered by being there."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rebracket.ops import folders


def test_a_new_file_is_a_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "planted_folder").mkdir()
    for name, text in (("__init__", ""), ("pear", "taste = 'sweet'"), ("apple", "raise ImportError")):
        (tmp_path / f"planted_folder/{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = importlib.import_module("planted_folder")
    assert folders.names(package) == ("apple", "pear")
    assert folders.load(package, "pear", "fruit").taste == "sweet"
    assert "planted_folder.apple" not in sys.modules
    with pytest.raises(ValueError, match=r"fruit 'peer' is unknown, did you mean 'pear'\?; known are apple, pear"):
        folders.load(package, "peer", "fruit")


def test_the_one_class_of_a_kind_is_found():
    class Fruit: ...

    module = ModuleType("orchard")
    module.Pear, module.Fruit = type("Pear", (Fruit,), {"__module__": "orchard"}), Fruit  # type: ignore[attr-defined]
    assert folders.only(module, Fruit) is module.Pear  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"empty must define one Fruit, found \[\]"):
        folders.only(ModuleType("empty"), Fruit)
    module.Plum = type("Plum", (Fruit,), {"__module__": "orchard"})  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"found \['Pear', 'Plum'\]"):
        folders.only(module, Fruit)
