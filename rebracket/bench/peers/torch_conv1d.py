"""torch's conv1d with a group for each channel, and SiLU, as models in plain torch have it."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from rebracket.bench.case import Implementation, Prepared, prepare_torch
from rebracket.bench.cases.short_convolution import WIDTH, ConvolutionInputs, ShortConvolutionCase, convolved


@final
class TorchConv1d(Implementation):
    """torch is always there, so this peer takes part whether or not peers were asked for."""

    operator = ShortConvolutionCase
    name = "torch conv1d"
    is_optional = False

    def prepare(self, case: ShortConvolutionCase, x: ConvolutionInputs, threads: int) -> Prepared:
        return prepare_torch(case.mode, x, convolve, convolved)


def convolve(x: ConvolutionInputs) -> tuple[Tensor, Tensor]:
    """y [B,T,D] and the next tail [B,W-1,D], on views; a sequence is padded on both sides and cut."""
    T, D = x.x.shape[1:]
    seen = x.x.mT if x.tail is None else torch.cat([x.tail.mT, x.x.mT], -1)
    padding = WIDTH - 1 if x.tail is None else 0
    y = silu(conv1d(seen, x.filters[:, None], padding=padding, groups=D)[..., :T])
    return y.mT, seen[..., 1 - WIDTH :].mT
