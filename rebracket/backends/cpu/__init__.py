"""The CPU backend: native kernels in chunks of 16 writes, forward, backward and one token at a time."""

from rebracket.backends.cpu.backend import BACKEND

__all__ = ["BACKEND"]
