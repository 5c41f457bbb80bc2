"""The structures of csrc/program.h."""

import ctypes
from typing import ClassVar, final

WHOLE, HALF, BYTE = range(3)
"""Formats of weights: float32, bfloat16, int8."""


@final
class Span(ctypes.Structure):
    """A value: `width` numbers of row 0 at `data`, those of the next row `stride` numbers on; a weight has stride 0."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64), ("width", ctypes.c_int64))


@final
class Operation(ctypes.Structure):
    """One operation."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "function", "format", "flag")),
        *((name, Span) for name in ("out", "x", "k", "v", "r", "beta", "decay")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "index")),
        *((name, ctypes.c_int64) for name in ("groups", "query_heads", "key_heads", "heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("per_token", "width", "weight_step", "held", "key_sum", "paged")),
        ("record", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("eps", "before", "after")),
    )


@final
class Segment(ctypes.Structure):
    """The next tokens of one text, how its next one is chosen, and what came of it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("slot", "first", "count", "drafted")),
        *((name, ctypes.c_int32) for name in ("wanted", "choose")),
        *((name, ctypes.c_double) for name in ("temperature", "top_p")),
        *((name, ctypes.c_int64) for name in ("top_k", "limit", "stop")),
        *((name, ctypes.c_uint64) for name in ("seed", "drawn")),
        ("accepted", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ended", "damaged")),
    )


@final
class ProgramCall(ctypes.Structure):
    """One call of a program."""

    PAGE_TOKENS: ClassVar[int] = 64
    LANES: ClassVar[int] = 16
    MOST_WIDTH: ClassVar[int] = 64
    MOST_THREADS: ClassVar[int] = 256

    _fields_ = (
        *((name, ctypes.POINTER(Operation)) for name in ("body", "head")),
        *((name, ctypes.c_int64) for name in ("bodies", "heads", "rows", "most_rows", "segments", "drafts", "threads")),
        ("vocab", ctypes.c_int64),
        ("logits", Span),
        ("segment", ctypes.POINTER(Segment)),
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "wanted", "chosen", "owner", "slots")),
        *((name, ctypes.c_int64) for name in ("slot_count", "slot_stride")),
        *((name, ctypes.c_void_p) for name in ("seen", "pages")),
        *((name, ctypes.c_int64) for name in ("page_count", "page_size", "most_pages", "window")),
        *((name, ctypes.c_void_p) for name in ("tables", "records")),
        ("record_size", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("scratch_size", "wanted_count")),
    )


@final
class Packing(ctypes.Structure):
    """Weights [N,K] to be packed."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("from", "to")),
        *((name, ctypes.c_int64) for name in ("N", "K")),
        ("format", ctypes.c_int32),
    )
