"""Folders in which a file's name is its registration."""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from rebracket.ops.names import nearest

Kind = TypeVar("Kind")


def names(package: ModuleType) -> tuple[str, ...]:
    """The files of a package, sorted, without their ending."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load(package: ModuleType, name: str, what: str) -> ModuleType:
    """The file `name` of a package.

    Args:
        package: the folder.
        name: the file's name without its ending.
        what: what such a file is, for the message.

    Raises:
        ValueError: If there is no such file; the message names the nearest and lists them all.
    """
    known = names(package)
    if name not in known:
        raise ValueError(f"{what} {name!r} is unknown{nearest(name, known)}")
    return importlib.import_module(f"{package.__name__}.{name}")


def only(module: ModuleType, kind: type[Kind]) -> Callable[..., Kind]:
    """The one class of a kind that a module itself defines.

    Raises:
        TypeError: If there is none, or more than one.
    """
    own = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    found = [x for x in own if issubclass(x, kind)]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define one {kind.__name__}, found {[x.__name__ for x in found]}")
    return found[0]
