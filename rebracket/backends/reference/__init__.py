"""The reference backend: the specification in torch operations, on every device that torch runs on.

It computes every call, and is differentiable twice.
"""

from rebracket.ops.backend import Backend, implementations

__all__ = ["BACKEND"]

BACKEND = Backend("reference", rank=0, operators=implementations(__name__))
