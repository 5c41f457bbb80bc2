"""Gated linear attention: a decay that the token sets for every key channel."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.gla import GLADecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection


def build(size: MixerSize, *, convolution: int | None = None, feature: str = "identity") -> Mixer:
    """Additive writes, output normed and gated by SiLU.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k.

    Source: Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training".
    """
    phi = features.make(feature, size.key_dim)
    return LinearAttention(
        size,
        feature=phi,
        decay=GLADecay(size.d_model, size.heads, phi.dim_out),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
