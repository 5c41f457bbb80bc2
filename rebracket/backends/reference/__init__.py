"""The reference backend: the specification in torch operations, on every device that torch runs on."""

from rebracket.backends.reference.backend import BACKEND

__all__ = ["BACKEND"]
