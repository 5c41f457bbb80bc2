"""Feature maps by name; each file of this folder is one, under the name of the file."""

from collections.abc import Mapping
from types import MappingProxyType

from rebracket.base.registry import Registry, nearest, options
from rebracket.features.base import FeatureMap

NO_SETTINGS: Mapping[str, object] = MappingProxyType({})
MAPS = Registry(__name__, "feature map", FeatureMap)


def names() -> tuple[str, ...]:
    """The names of all feature maps, sorted.

    Example:
        >>> "elu1" in names()
        True
    """
    return MAPS.names()


def make(name: str, dim: int, settings: Mapping[str, object] = NO_SETTINGS) -> FeatureMap:
    """Build a feature map by name.

    phi: R^dim -> R^dim_out

    Args:
        name: one of `names()`.
        dim: size of the vectors it will be given, >= 1.
        settings: the map's own settings by name, such as {"nu": 2} for "dpfp".

    Returns:
        The map, with `dim_out` and `positive` set.

    Raises:
        ValueError: If there is no such map, or the map has no such option.

    Cost: one import at the first use of a name.

    Example:
        >>> make("dpfp", 4, {"nu": 2}).dim_out
        16
    """
    build = MAPS.load(name)
    for option in settings:
        if option not in options(build):
            raise ValueError(f"options: feature map {name!r} has no option {option!r}{nearest(option, options(build))}")
    return build(dim, **settings)
