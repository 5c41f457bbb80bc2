"""Gated linear attention: a decay that the token sets for every key channel."""

from rebracket import features
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention, widened
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection

OPTIONS = ("convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """Additive writes, output normed and gated by SiLU.

    Source: Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training".
    """
    feature = features.make(size.feature or "identity", size.key_dim)
    return LinearAttention(
        size,
        feature=feature,
        decay=decays.make("gla", widened(size, feature)),
        convolution=size.convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
