"""The operations of every feature map compute the map, for several heads at once."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rebracket import features
from rebracket.base.registry import options
from rebracket.nn.normalized import UnitFeatures
from tests.nn.lowered import run

DIM, HEADS, ROWS = 4, 3, 5


def other(default: object) -> object:
    """Another value that an option with that default may have."""
    if isinstance(default, bool):
        return not default
    return "exp" if isinstance(default, str) else 2.5 if isinstance(default, float) else 3


def choices() -> list[tuple[str, Mapping[str, Any]]]:
    """Every map with its defaults and with each option changed."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in features.names():
        changed = [{key: other(x.default)} for key, x in options(features.MAPS.load(name)).items()]
        found += [(name, settings) for settings in ({}, *changed)]
    return found


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("name", "settings"), choices())
def test_the_operations_are_the_map(name: str, settings: Mapping[str, Any], unit: bool):
    phi = features.make(name, DIM, settings).double()
    phi = UnitFeatures(phi) if unit else phi
    x = torch.randn(ROWS, HEADS, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for lower, forward in ((phi.lower, phi), (phi.lower_queries, phi.queries)):
        found = run(x.flatten(1), lambda build, value, lower=lower: lower(build, value, HEADS))
        torch.testing.assert_close(found, forward(x).flatten(1).detach(), rtol=1e-12, atol=1e-12)
