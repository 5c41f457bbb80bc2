"""Gated DeltaNet-2: Kimi Delta Attention that erases per key channel and writes per value channel."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.kda import KDADecay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import LowRankProjection
from rebracket.nn.writes.gated_erase import GatedEraseWrite


def build(size: MixerSize, *, convolution: int = 4, erase_max: float = 1.0, feature: str = "identity") -> Mixer:
    """Unit keys after a short convolution, a decay per key channel, output normed and gated by a sigmoid of low rank.

    Args:
        size: its sizes.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        erase_max: the most that is erased, in (0, 2]; above 1 the transition may have negative eigenvalues.
        feature: name of the feature map of q and k.

    Source: "Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention" (2026, arXiv 2605.22791).
    """
    phi = UnitFeatures(features.make(feature, size.key_dim))
    return LinearAttention(
        size,
        feature=phi,
        decay=KDADecay(size.d_model, size.heads, phi.dim_out),
        write=GatedEraseWrite(size.d_model, size.heads, phi.dim_out, size.value_dim, erase_max),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps, "sigmoid"),
        gate=LowRankProjection(size.d_model, size.value_dim, size.heads * size.value_dim, bias=True),
    )
