"""Mamba-2: a state-space model, read as linear attention with a decay per token and head."""

from rebracket import features
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import GatedNorm
from rebracket.nn.projections import Projection
from rebracket.nn.skip import ValueSkip

OPTIONS = ("convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """Values weighted by the step of the decay, no scale, a skip past the memory, output gated by SiLU and then normed.

    C, B and x of the paper are q, k and v here, after a short convolution (without its bias); the paper's models share
    C and B over all heads, which is key_heads = 1.

    Source: Dao and Gu 2024, "Transformers are SSMs".
    """
    return LinearAttention(
        size,
        feature=features.make(size.feature or "identity", size.key_dim),
        decay=decays.make("mamba2", size),
        scale=1.0,
        convolution=size.convolution or 4,
        skip=ValueSkip(size.heads),
        norm=GatedNorm(size.heads, size.value_dim, size.norm_eps),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
