"""The operations of a layer compute the layer, whatever parts it is made of."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rebracket import features
from rebracket.nn import LinearAttention, Mixer, decays, writes
from rebracket.nn.correction import QueryCorrection
from rebracket.nn.decays.base import Decay, StepDecay
from rebracket.nn.norms import CenteredNorm, GatedNorm, HeadNorm, JointNorm, OutputNorm
from rebracket.nn.projections import Projection
from rebracket.nn.skip import ValueSkip
from rebracket.ops.program import NotLoweredError
from tests.nn.lowered import run
from tests.nn.tiny import SIZE, stir, tokens

H, V = SIZE.heads, SIZE.value_dim
NORMS = (
    HeadNorm(V),
    HeadNorm(V, activation="silu"),
    JointNorm(H, V, activation="sigmoid"),
    CenteredNorm(H, V, activation="silu"),
    CenteredNorm(H, V),
    GatedNorm(H, V),
)


def same(layer: Mixer) -> None:
    layer = layer.double()
    stir(layer)
    x = tokens(1)
    found = run(x[0], lambda build, value: layer.lower(build, value, value))
    wanted = x[0] + layer(x)[0][0].detach()
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def layer_of(decay: str | None, write: str) -> LinearAttention:
    fades = None if decay is None else decays.make(decay, SIZE)
    return LinearAttention(
        SIZE,
        feature=features.make("identity", SIZE.key_dim),
        decay=fades,
        write=writes.make(write, SIZE, fades),
    )


def fitting() -> list[tuple[str | None, str]]:
    """Every write with every decay that it can work with."""
    found: list[tuple[str | None, str]] = []
    for decay, write in itertools.product((None, *decays.names()), writes.names()):
        try:
            layer_of(decay, write)(tokens(1, dtype=torch.float32))
        except (AttributeError, ValueError):
            continue
        found.append((decay, write))
    return found


def test_most_writes_fit_most_decays():
    assert len(fitting()) > len(writes.names()) * len(decays.names()) / 2


@pytest.mark.parametrize(("decay", "write"), fitting())
def test_every_write_after_every_decay(decay: str | None, write: str):
    same(layer_of(decay, write))


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_every_norm_with_its_gate(norm: OutputNorm):
    gate = None if norm.activation is None else Projection(SIZE.d_model, H * V)
    same(LinearAttention(SIZE, feature=features.make("silu", SIZE.key_dim), norm=norm, gate=gate))


def test_correction_and_skip():
    same(
        LinearAttention(
            SIZE,
            feature=features.make("elu1", SIZE.key_dim),
            correction=QueryCorrection(SIZE.key_heads),
            skip=ValueSkip(H),
            convolution=3,
            silu=False,
        )
    )


class Late(Decay):
    """A decay of a user's own, which says nothing of programs."""

    def forward(self, x: Tensor) -> Tensor:
        return -x.square().mean(-1, keepdim=True).expand(*x.shape[:-1], H)

    def reset_parameters(self) -> None:
        """Nothing to draw."""


class Slow(StepDecay):
    """One that changes what it inherits."""

    @property
    def least_rate(self) -> float:
        return 0.5

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class Cubes(features.FeatureMap):
    def features(self, x: Tensor) -> Tensor:
        return x**3


@pytest.mark.parametrize(
    ("part", "layer"),
    [
        ("Late", lambda: LinearAttention(SIZE, feature=features.make("relu", SIZE.key_dim), decay=Late())),
        ("Slow", lambda: LinearAttention(SIZE, feature=features.make("relu", SIZE.key_dim), decay=Slow(7, H))),
        ("Cubes", lambda: LinearAttention(SIZE, feature=Cubes(SIZE.key_dim, SIZE.key_dim, positive=False))),
    ],
)
def test_a_part_without_operations_is_named(part: str, layer: Callable[[], Mixer]):
    made = layer()
    made(tokens(dtype=torch.float32))
    with pytest.raises(NotLoweredError, match=part):
        run(tokens(1)[0], lambda build, value: made.lower(build, value, value))
