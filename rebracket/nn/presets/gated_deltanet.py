"""Gated DeltaNet: the delta rule, with a decay that lets a head clear its memory."""

from rebracket import features
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.unit import UnitFeatures
from rebracket.nn.writes import DeltaWrite

OPTIONS = ("beta_max", "convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """A decay per token and head, delta writes with unit keys after a short convolution, output normed, gated by SiLU.

    Source: Yang et al. 2024, "Gated Delta Networks".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(size.feature or "identity", size.key_dim)),
        decay=decays.make("gated_deltanet", size),
        write=DeltaWrite(size.d_model, size.heads, size.beta_max or 1.0),
        convolution=size.convolution or 4,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
