"""Kimi Delta Attention: the delta rule, with a decay for every key channel."""

from rebracket import features
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention, widened
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import LowRankProjection
from rebracket.nn.unit import UnitFeatures
from rebracket.nn.writes import DeltaWrite

OPTIONS = ("beta_max", "convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """Delta writes with unit keys after a short convolution, output normed and gated by a sigmoid of low rank.

    Source: Kimi Team 2025, "Kimi Linear".
    """
    feature = UnitFeatures(features.make(size.feature or "identity", size.key_dim))
    return LinearAttention(
        size,
        feature=feature,
        decay=decays.make("kda", widened(size, feature)),
        write=DeltaWrite(size.d_model, size.heads, size.beta_max or 1.0),
        convolution=size.convolution or 4,
        norm=HeadNorm(size.value_dim, size.norm_eps, "sigmoid"),
        gate=LowRankProjection(size.d_model, size.value_dim, size.heads * size.value_dim, bias=True),
    )
