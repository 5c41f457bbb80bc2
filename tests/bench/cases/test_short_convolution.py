"""The short convolution's inputs and least work."""

from dataclasses import replace

import pytest
import torch

from rebracket.bench.case import NotCoveredError
from rebracket.bench.cases.short_convolution import WIDTH, ShortConvolutionCase
from rebracket.bench.peers.torch_conv1d import TorchConv1d

LONG = ShortConvolutionCase("convolution", (2, 9, 5), "forward")
TRAIN = replace(LONG, mode="train")
TOKEN = ShortConvolutionCase("convolution", (3, 1, 5), "decode")


def test_inputs_have_a_tail_where_they_are_decoded():
    token = TOKEN.inputs()
    assert token.tail is not None
    assert token.tail.shape == (3, WIDTH - 1, 5)
    assert LONG.inputs().tail is None
    prepared = TorchConv1d().prepare(TOKEN, token, 1)
    assert torch.equal(prepared.results(prepared.run())["tail"], torch.cat([token.tail[:, 1:], token.x], 1))


def test_the_least_work():
    numbers, state = 2 * 9 * 5, 3 * 3 * 5 * 4
    assert LONG.work[:2] == (2 * WIDTH * numbers, 2 * 4 * numbers)
    assert TRAIN.work[:2] == (3 * 2 * WIDTH * numbers, 5 * 4 * numbers)
    assert replace(LONG, dtype=torch.bfloat16).work.nbytes == 2 * 2 * numbers
    assert TOKEN.work[1:3] == (2 * 4 * 15 + 2 * state, state)


def test_a_backend_that_is_not_there_is_a_refusal():
    with pytest.raises(NotCoveredError, match="must be auto or one of"):
        LONG.prepare("abacus", LONG.inputs())
