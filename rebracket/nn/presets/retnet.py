"""RetNet: a fixed decay for each head and rotary positions."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.retnet import RetNetDecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.rotary import Rotary


def build(
    size: MixerSize, *, convolution: int | None = None, feature: str = "identity", rotary_base: float = 10000.0
) -> Mixer:
    """Additive writes, output normed and gated by SiLU.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k.
        rotary_base: base of the wavelengths of the rotary positions, > 1.

    Source: Sun et al. 2023, "Retentive Network".
    """
    return LinearAttention(
        size,
        feature=features.make(feature, size.key_dim),
        decay=RetNetDecay(size.heads),
        convolution=convolution,
        rotary=Rotary(size.key_dim, rotary_base),
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
