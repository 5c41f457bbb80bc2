"""Mamba-2: a state-space model, read as linear attention with a decay per token and head."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.mamba2 import Mamba2Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import GatedNorm
from rebracket.nn.projections import Projection
from rebracket.nn.skip import ValueSkip
from rebracket.nn.writes.step import StepWrite


def build(size: MixerSize, *, convolution: int = 4, feature: str = "identity") -> Mixer:
    """Values weighted by the step of the decay, no scale, a skip past the memory, output gated by SiLU and then normed.

    C, B and x of the paper are q, k and v here, after a short convolution (without its bias); the paper's models share
    C and B over all heads, which is key_heads = 1.

    Args:
        size: its sizes.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.

    Source: Dao and Gu 2024, "Transformers are SSMs".
    """
    decay = Mamba2Decay(size.d_model, size.heads)
    return LinearAttention(
        size,
        feature=features.make(feature, size.key_dim),
        decay=decay,
        write=StepWrite(decay),
        scale=1.0,
        convolution=convolution,
        skip=ValueSkip(size.heads),
        norm=GatedNorm(size.heads, size.value_dim, size.norm_eps),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
