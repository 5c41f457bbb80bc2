"""Feature maps by name: the name of a file in this folder is the name of the map in it."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType

from rebracket.features.base import FeatureMap
from rebracket.ops import folders
from rebracket.ops.names import nearest

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
NOT_MAPS = {"base"}


def names() -> tuple[str, ...]:
    """The names of all feature maps, sorted.

    Example:
        >>> "elu1" in names()
        True
    """
    return tuple(name for name in folders.names(sys.modules[__name__]) if name not in NOT_MAPS)


def make(name: str, dim: int, options: Mapping[str, object] = NO_OPTIONS) -> FeatureMap:
    """Build a feature map by name.

    phi: R^dim -> R^dim_out

    Args:
        name: one of `names()`.
        dim: size of the vectors it will be given, >= 1.
        options: the map's own settings by name, such as {"nu": 2} for "dpfp".

    Returns:
        The map, with `dim_out` and `positive` set.

    Raises:
        ValueError: If there is no such map, or the map has no such option.

    Cost: one import at the first use of a name.

    Example:
        >>> make("dpfp", 4, {"nu": 2}).dim_out
        16
    """
    if name not in names():
        raise ValueError(f"name must be a feature map, got {name!r}{nearest(name, names())}")
    build = folders.only(importlib.import_module(f"{__name__}.{name}"), FeatureMap)
    known = [option for option in inspect.signature(build).parameters if option != "dim"]
    for option in options:
        if option not in known:
            raise ValueError(f"options: feature map {name!r} has no option {option!r}{nearest(option, known)}")
    return build(dim, **options)
