"""Feature maps by name: the name of a file in this folder is the name of the map in it."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType

from rebracket.features.base import FeatureMap
from rebracket.ops.names import nearest

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
NOT_MAPS = {"base"}


def names() -> tuple[str, ...]:
    """The names of all feature maps, sorted.

    Example:
        >>> "elu1" in names()
        True
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in NOT_MAPS))


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
    build = find(importlib.import_module(f"{__name__}.{name}"))
    known = [option for option in inspect.signature(build).parameters if option != "dim"]
    for option in options:
        if option not in known:
            raise ValueError(f"options: feature map {name!r} has no option {option!r}{nearest(option, known)}")
    return build(dim, **options)


def find(module: ModuleType) -> Callable[..., FeatureMap]:
    """The one feature map that a module defines."""
    maps = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, FeatureMap) and item.__module__ == module.__name__
    ]
    if len(maps) != 1:
        raise TypeError(f"{module.__name__} must define one FeatureMap, found {[item.__name__ for item in maps]}")
    return maps[0]
