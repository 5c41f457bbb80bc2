"""Programs of one part of a model: its operations on vectors that are looked up, run by the reference."""

from collections.abc import Callable

import torch
from torch import Tensor

from rebracket.backends.reference.program import Program, Segment
from rebracket.ops.program import Builder, Graph, Value


def program_of(x: Tensor, lower: Callable[[Builder, Value], Value]) -> Program:
    """The program of a part on the vectors x [n,width]: token i is vector i."""
    build = Builder()
    with torch.no_grad():
        out = lower(build, build.embed(x))
    return Program(Graph(tuple(build.operations), (), out, tuple(build.widths), tuple(build.held), tuple(build.paged)))


def run(x: Tensor, lower: Callable[[Builder, Value], Value]) -> Tensor:
    """What the part makes of the sequence of these vectors, [n,out]."""
    program = program_of(x, lower)
    return program.run([Segment(program.empty(), range(len(x)))])
