"""RetNet: a fixed decay for each head and rotary positions."""

from rebracket import features
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.rotary import Rotary

OPTIONS = ("convolution", "feature", "rotary_base")


def build(size: MixerSize) -> Mixer:
    """Additive writes, output normed and gated by SiLU.

    Source: Sun et al. 2023, "Retentive Network".
    """
    return LinearAttention(
        size,
        feature=features.make(size.feature or "identity", size.key_dim),
        decay=decays.make("retnet", size),
        convolution=size.convolution,
        rotary=Rotary(size.key_dim, size.rotary_base or 10000.0),
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
