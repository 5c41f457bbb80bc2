"""The short convolution: width 4, SiLU and no bias, as layers of linear attention have it before the attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.bench.case import Case, Prepared, Results, Work, prepare_torch, refusals
from rebracket.ops.convolution import short_convolution

WIDTH = 4


@final
@dataclass(frozen=True, eq=False)
class ConvolutionInputs:
    """The tensors of a case.

    Args:
        x: [B,T,D].
        filters: [D,W], the newest token's weight last.
        weight: [B,T,D].
        tail: the tokens before, [B,W-1,D], in decode; None in the other modes.
    """

    x: Tensor
    filters: Tensor
    weight: Tensor
    tail: Tensor | None


@final
class ShortConvolutionCase(Case):
    """`short_convolution` over a sequence, or one token from a given tail."""

    letters = "BTD"
    titles: ClassVar = {"convolution": "short convolution"}
    # 8192 channels are those of a Qwen3-Next layer; smaller shapes first, from which the time of larger ones follows.
    shapes: ClassVar = {
        "full": ((1, 4096, 1024), (4, 2048, 2048), (1, 4096, 8192), (1, 1, 8192)),
        "quick": ((1, 256, 64), (2, 512, 64), (1, 1, 64)),
    }
    note = (
        "The short convolution has shapes BxTxD, a width of 4, SiLU and no bias. It moves x and y, and with the "
        'backward pass also x, the gradient of y and that of x. "torch conv1d" is what models in plain torch do: a '
        "group for each channel, a padded sequence that is cut, and SiLU."
    )

    @property
    def work(self) -> Work:
        B, T, D = self.shape
        products, moves = (3, 5) if self.mode == "train" else (1, 2)
        state_nbytes = (WIDTH - 1) * B * D * self.dtype.itemsize
        moved = moves * B * T * D * self.dtype.itemsize + (2 * state_nbytes if self.mode == "decode" else 0)
        return Work(2 * WIDTH * B * T * D * products, moved, state_nbytes, B * D)

    def draw(self) -> ConvolutionInputs:
        generator, (B, T, D) = torch.Generator().manual_seed(0), self.shape

        def randn(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).to(self.dtype)

        tail = randn(B, WIDTH - 1, D) if self.mode == "decode" else None
        return ConvolutionInputs(randn(B, T, D), randn(D, WIDTH), randn(B, T, D), tail)

    def prepare(self, backend: str, x: ConvolutionInputs) -> Prepared:
        call = partial(short_convolution, activation="silu", backend=backend)
        with refusals():
            call(x.x[:, :1], x.filters, tail=x.tail)
        return prepare_torch(self.mode, x, lambda x: call(x.x, x.filters, tail=x.tail), convolved)


def convolved(made: tuple[Tensor, Tensor]) -> Results:
    return dict(zip(("out", "tail"), made, strict=True))
