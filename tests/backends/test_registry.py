"""A folder that names a BACKEND is a backend; the best stands first and the reference covers everything."""

import importlib
import pkgutil
import sys
from dataclasses import replace
from types import ModuleType
from typing import final

import pytest
import torch

import rebracket.backends
from rebracket.ops.backend import INSTALLED, Backend, choose
from rebracket.ops.call import Call
from rebracket.testing.operators.recurrence import draw, few, recurrence

FOLDERS = [module.name for module in pkgutil.iter_modules(rebracket.backends.__path__)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_installed_under_its_own_name(folder: str):
    backend = importlib.import_module(f"{rebracket.backends.__name__}.{folder}").BACKEND
    assert isinstance(backend, Backend)
    assert backend.name == folder
    assert INSTALLED[folder] is backend


def test_the_best_stand_first_and_no_two_are_equal():
    ranks = [backend.rank for backend in INSTALLED.values()]
    assert ranks == sorted(set(ranks), reverse=True)
    assert set(INSTALLED) == set(FOLDERS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 1, 7, 1000])
def test_the_reference_covers_every_call(dtype: torch.dtype, chunk: int | None):
    for shape in ("plain", "grouped", "packed"):
        for case in few(dtype, shape):
            assert INSTALLED["reference"].covers(replace(recurrence(draw(case)), chunk=chunk)) is None


@final
class Unheard(Call):
    """An operator that nobody computes."""


def test_what_a_backend_does_not_list_is_refused_by_name():
    for backend in INSTALLED.values():
        assert backend.covers(Unheard()) == "it does not compute unheard calls"
    with pytest.raises(ValueError, match="no backend covers this call: not 'cpu': it does not compute unheard calls"):
        choose(Unheard(), "auto")


def test_a_backend_whose_library_is_missing_is_one_that_refuses(monkeypatch: pytest.MonkeyPatch):
    def without_library(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(importlib, "import_module", without_library)
    backend = rebracket.backends.found("cpu")
    monkeypatch.undo()
    assert backend.name == "cpu"
    assert "could not be imported" in str(backend.covers(Unheard()))
    monkeypatch.setitem(sys.modules, f"{rebracket.backends.__name__}.cpu", None)
    with pytest.raises(ImportError, match="cpu"):
        rebracket.backends.found("cpu")
    empty = ModuleType("empty")
    monkeypatch.setitem(sys.modules, f"{rebracket.backends.__name__}.cpu", empty)
    with pytest.raises(AttributeError, match="BACKEND"):
        rebracket.backends.found("cpu")
