"""Comba: the gated delta rule with a learned part of its feedback, and queries corrected by the key."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.correction import QueryCorrection
from rebracket.nn.decays.gated_deltanet import GatedDeltaNetDecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.writes.feedback import FeedbackWrite


def build(size: MixerSize, *, convolution: int = 4, feature: str = "identity") -> Mixer:
    """A decay per token and head, delta writes with unit keys that erase less, output normed, gated by a sigmoid.

    S_t = a_t S_{t-1} + beta_t k_t (v_t - b S_{t-1}^T k_t)^T,   o_t = S_t^T (q_t - d k_t)

    Args:
        size: its sizes.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.

    Source: Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop Control".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(feature, size.key_dim)),
        decay=GatedDeltaNetDecay(size.d_model, size.heads),
        write=FeedbackWrite(size.d_model, size.heads, size.key_heads),
        convolution=convolution,
        correction=QueryCorrection(size.key_heads),
        norm=HeadNorm(size.value_dim, size.norm_eps, "sigmoid"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
