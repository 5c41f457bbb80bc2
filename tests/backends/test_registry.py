"""A folder that names a BACKEND is a backend; the best stands first and the reference covers everything."""

import importlib
import pkgutil

import pytest
import torch

import rebracket.backends
from rebracket.ops.backend import INSTALLED, Backend
from rebracket.testing.rows import few, recurrence
from rebracket.testing.samples import draw

FOLDERS = [module.name for module in pkgutil.iter_modules(rebracket.backends.__path__)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_installed_under_its_own_name(folder: str):
    backend = importlib.import_module(f"{rebracket.backends.__name__}.{folder}").BACKEND
    assert isinstance(backend, Backend)
    assert backend.name == folder
    assert INSTALLED[folder] is backend
    assert backend.chunk >= 1


def test_the_best_stand_first_and_no_two_are_equal():
    ranks = [backend.rank for backend in INSTALLED.values()]
    assert ranks == sorted(set(ranks), reverse=True)
    assert set(INSTALLED) == set(FOLDERS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 1, 7, 1000])
def test_the_reference_covers_every_call(dtype: torch.dtype, chunk: int | None):
    for shape in ("plain", "grouped", "packed"):
        for case in few(dtype, shape):
            assert INSTALLED["reference"].refusal(recurrence(draw(case)), chunk) is None
