"""Open folders: a file is a member by being there, under its own name.

A file of such a folder defines one member of the folder's kind: one class of it, or one function of its name.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar, final

Member = TypeVar("Member")
BASE = "base"
"""The file or folder of an open folder that holds what its members share; it is no member."""


@final
@dataclass(frozen=True)
class Registry(Generic[Member]):
    """The members of an open folder.

    Args:
        package: dotted name of the folder.
        what: what one of them is called in messages.
        kind: the class that each file has one subclass of, or the name of the function that each file has.

    Example:
        >>> from rebracket.features.base import FeatureMap
        >>> maps = Registry("rebracket.features", "feature map", FeatureMap)
        >>> "elu1" in maps.names(), maps.load("elu1").__name__
        (True, 'Elu1')
    """

    package: str
    what: str
    kind: type[Member] | str

    def names(self) -> tuple[str, ...]:
        """The names of all members, sorted."""
        found = pkgutil.iter_modules(importlib.import_module(self.package).__path__)
        return tuple(sorted(x.name for x in found if x.name != BASE and not x.name.startswith("_")))

    def load(self, name: str) -> Callable[..., Any]:
        """The member of that name.

        Raises:
            ValueError: If there is none; the message names the nearest and lists them all.
            TypeError: If its file does not define just one.
        """
        module = self.module(name)
        return getattr(module, self.kind) if isinstance(self.kind, str) else only(module, self.kind)

    def module(self, name: str) -> ModuleType:
        """The file of that name."""
        known = self.names()
        if name not in known:
            raise ValueError(f"{self.what} {name!r} is unknown{nearest(name, known)}")
        return importlib.import_module(f"{self.package}.{name}")


def only(module: ModuleType, kind: type[Member]) -> type[Member]:
    """The one class of a kind that a module itself defines.

    Raises:
        TypeError: If there is none, or more than one.
    """
    own = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    found = [x for x in own if issubclass(x, kind) and not inspect.isabstract(x)]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define one {kind.__name__}, found {[x.__name__ for x in found]}")
    return found[0]


def options(build: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """The keywords that a member may be built with: every parameter with a default."""
    found = inspect.signature(build).parameters
    return {name: x for name, x in found.items() if x.default is not inspect.Parameter.empty}


def nearest(name: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the known one most like it, and all of them.

    Example:
        >>> "'peer' is unknown" + nearest("peer", ["apple", "pear"])
        "'peer' is unknown, did you mean 'pear'?; known are apple, pear"
    """
    found = difflib.get_close_matches(str(name), known, n=1)
    meant = f", did you mean {found[0]!r}?" if found else ""
    return f"{meant}; known are {', '.join(known) or 'none'}"
