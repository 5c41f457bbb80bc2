"""A file is registered by being there."""

import importlib
import sys
from pathlib import Path

import pytest

from rebracket.nn import folders


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
