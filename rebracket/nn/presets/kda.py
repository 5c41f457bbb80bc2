"""Kimi Delta Attention: the delta rule, with a decay for every key channel."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.kda import KDADecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import LowRankProjection
from rebracket.nn.writes.delta import DeltaWrite


def build(size: MixerSize, *, beta_max: float = 1.0, convolution: int = 4, feature: str = "identity") -> Mixer:
    """Delta writes with unit keys after a short convolution, output normed and gated by a sigmoid of low rank.

    Args:
        size: its sizes.
        beta_max: largest strength of a write, in (0, 2]; above 1 the transition may have negative eigenvalues.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.

    Source: Kimi Team 2025, "Kimi Linear".
    """
    phi = UnitFeatures(features.make(feature, size.key_dim))
    return LinearAttention(
        size,
        feature=phi,
        decay=KDADecay(size.d_model, size.heads, phi.dim_out),
        write=DeltaWrite(size.d_model, size.heads, beta_max),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps, "sigmoid"),
        gate=LowRankProjection(size.d_model, size.value_dim, size.heads * size.value_dim, bias=True),
    )
