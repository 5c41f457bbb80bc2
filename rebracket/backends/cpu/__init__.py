"""The CPU backend: native kernels in chunks of 16 writes, forward, backward and one token at a time.

float32 arithmetic, the state in cache, torch's threads.
"""

from rebracket.ops.backend import Backend, implementations

__all__ = ["BACKEND"]

BACKEND = Backend("cpu", rank=10, operators=implementations(__name__))
