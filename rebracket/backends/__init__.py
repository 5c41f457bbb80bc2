"""The backends, one folder each; every one computes the operators that it lists and refuses the rest.

A folder is a backend when it names a `BACKEND`; finding it here is its registration. One whose library is not installed
is a backend that refuses, with the reason.
"""

import importlib
import pkgutil

from rebracket.ops.backend import INSTALLED, Backend


def found(name: str) -> Backend:
    """The backend of a folder."""
    try:
        return importlib.import_module(f"{__name__}.{name}").BACKEND
    except ImportError as error:
        if (error.name or "").startswith("rebracket."):
            raise  # a fault of this package, not a library that is missing
        return Backend(name, rank=-1, missing=f"it could not be imported: {error}")


BACKENDS = [found(module.name) for module in pkgutil.iter_modules(__path__)]
INSTALLED.update({backend.name: backend for backend in sorted(BACKENDS, key=lambda backend: -backend.rank)})
