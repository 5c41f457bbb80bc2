"""Gated DeltaNet: the delta rule, with a decay that lets a head clear its memory."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.gated_deltanet import GatedDeltaNetDecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.writes.delta import DeltaWrite


def build(size: MixerSize, *, beta_max: float = 1.0, convolution: int = 4, feature: str = "identity") -> Mixer:
    """A decay per token and head, delta writes with unit keys after a short convolution, output normed, gated by SiLU.

    Args:
        size: its sizes.
        beta_max: largest strength of a write, in (0, 2]; above 1 the transition may have negative eigenvalues.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.

    Source: Yang et al. 2024, "Gated Delta Networks".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(feature, size.key_dim)),
        decay=GatedDeltaNetDecay(size.d_model, size.heads),
        write=DeltaWrite(size.d_model, size.heads, beta_max),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
