"""Folders in which a file's name is its registration."""

import importlib
import pkgutil
from types import ModuleType

from rebracket.ops.names import nearest


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
