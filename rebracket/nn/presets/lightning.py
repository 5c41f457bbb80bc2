"""Lightning attention: a fixed decay for each head, weaker in later layers, and SiLU before everything."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.lightning import LightningDecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import JointNorm
from rebracket.nn.projections import Projection


def build(size: MixerSize, *, convolution: int | None = None, feature: str = "identity") -> Mixer:
    """Additive writes of q, k and v after SiLU, no scale, output normed over all heads and gated by a sigmoid.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k.

    Source: Qin et al. 2024, "Lightning Attention-2"; MiniMax-01 (2025), whose linear layers these are.
    """
    return LinearAttention(
        size,
        feature=features.make(feature, size.key_dim),
        decay=LightningDecay(size.heads, size.layer, size.layers),
        scale=1.0,
        convolution=convolution,
        silu=True,
        norm=JointNorm(size.heads, size.value_dim, size.norm_eps, "sigmoid"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
