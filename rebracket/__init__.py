"""Linear attention: one operator for the whole family, the same function in every mode, and a state you can hold."""

import rebracket.backends  # noqa: F401  (registers the backends)
from rebracket.ops.associative import AssociativeMemory
from rebracket.ops.attention import explain, linear_attention, step
from rebracket.ops.plan import Plan
from rebracket.ops.segment import Segment, compose, scan
from rebracket.ops.softmax import KeyValues, softmax_attention
from rebracket.ops.state import Output, State
from rebracket.ops.stepper import Stepper
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.ops.writes.delta_product import DeltaProduct
from rebracket.ops.writes.gated_erase import GatedErase
from rebracket.ops.writes.low_rank import LowRank
from rebracket.ops.writes.read_key import ReadKey

__all__ = [
    "Additive",
    "AssociativeMemory",
    "Delta",
    "DeltaProduct",
    "GatedErase",
    "KeyValues",
    "LowRank",
    "Output",
    "Plan",
    "ReadKey",
    "Segment",
    "State",
    "Stepper",
    "compose",
    "explain",
    "linear_attention",
    "scan",
    "softmax_attention",
    "step",
]
