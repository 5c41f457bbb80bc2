"""Memory of this process, by the name that it has had; the functions are those of `rebracket.base.resources`."""

from rebracket.base.resources import forget_peak, peak_nbytes, resident_nbytes

__all__ = ["forget_peak", "peak_nbytes", "resident_nbytes"]
