"""The CPU backend: native kernels in chunks of 16 writes, forward, backward and one token at a time.

float32 arithmetic, the state in cache, torch's threads.
"""

from rebracket.backends.cpu.convolution import ConvolutionKernels
from rebracket.backends.cpu.recurrence import RecurrenceKernels
from rebracket.backends.cpu.step import StepKernels
from rebracket.ops.backend import Backend
from rebracket.ops.call import Convolution, Recurrence, Step

__all__ = ["BACKEND"]

BACKEND = Backend(
    "cpu", rank=10, operators={Recurrence: RecurrenceKernels(), Step: StepKernels(), Convolution: ConvolutionKernels()}
)
