"""The backends, one folder each; every one computes the recurrence of `rebracket.ops.recurrence` or refuses.

A folder is a backend when it names a `BACKEND`; finding it here is its registration.
"""

import importlib
import pkgutil

from rebracket.ops.backend import INSTALLED, Backend

found: list[Backend] = [
    importlib.import_module(f"{__name__}.{module.name}").BACKEND for module in pkgutil.iter_modules(__path__)
]
INSTALLED.update({backend.name: backend for backend in sorted(found, key=lambda backend: -backend.rank)})
