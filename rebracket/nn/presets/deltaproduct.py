"""DeltaProduct: several delta writes a token, whose product is any rotation of that rank."""

from rebracket import features
from rebracket.base.checks import truth
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.gated_deltanet import GatedDeltaNetDecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.writes.delta_product import DeltaProductWrite


def build(
    size: MixerSize,
    *,
    beta_max: float = 2.0,
    convolution: int = 4,
    feature: str = "identity",
    gated: bool = False,
    writes: int = 2,
) -> Mixer:
    """DeltaNet with several keys, values and strengths a token; by default a write may reflect.

    Args:
        size: its sizes.
        beta_max: largest strength of a write, in (0, 2]; above 1 the transition may have negative eigenvalues.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.
        gated: whether there is a decay too, that of Gated DeltaNet (Gated DeltaProduct).
        writes: writes of a token, >= 1.

    Source: Siems et al. 2025, "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(feature, size.key_dim)),
        decay=GatedDeltaNetDecay(size.d_model, size.heads) if truth("gated", gated) else None,
        write=DeltaProductWrite(size.d_model, size.heads, beta_max, writes),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps),
    )
