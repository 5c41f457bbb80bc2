"""The reference backend: the specification in torch operations, on every device that torch runs on.

It computes every call, and is differentiable twice.
"""

from rebracket.backends.reference.convolution import TorchConvolution
from rebracket.backends.reference.recurrence import CHUNKED
from rebracket.backends.reference.softmax import TorchSoftmax
from rebracket.backends.reference.step import OneToken
from rebracket.ops.backend import Backend
from rebracket.ops.call import Convolution, Recurrence, Softmax, Step

__all__ = ["BACKEND"]

BACKEND = Backend(
    "reference",
    rank=0,
    operators={Recurrence: CHUNKED, Step: OneToken(), Convolution: TorchConvolution(), Softmax: TorchSoftmax()},
)
