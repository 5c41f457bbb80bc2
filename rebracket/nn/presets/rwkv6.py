"""RWKV-6: a decay per key channel, and a weight of its own for the present token."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.rwkv6 import RWKV6Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import CenteredNorm
from rebracket.nn.projections import Projection
from rebracket.nn.writes.bonus import BonusWrite


def build(size: MixerSize, *, convolution: int | None = 2, feature: str = "identity") -> Mixer:
    """Additive writes read before they are written, no scale, output normed and centred per head, gated by SiLU.

    The paper mixes each token with the one before it, in a proportion that the token sets, before every projection.
    Here a convolution of width 2 without activation mixes q, k and v after theirs, in a learned proportion for each
    channel; decay and gate see the present token alone.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k.

    Source: Peng et al. 2024, "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence".
    """
    phi = features.make(feature, size.key_dim)
    return LinearAttention(
        size,
        feature=phi,
        decay=RWKV6Decay(size.d_model, size.heads, phi.dim_out, size.layer, size.layers),
        write=BonusWrite(size.heads, phi.dim_out, size.layer, size.layers),
        scale=1.0,
        convolution=convolution,
        silu=False,
        # The paper's eps is 64 times that of its other norms.
        norm=CenteredNorm(size.heads, size.value_dim, 64 * size.norm_eps, "silu"),
        gate=Projection(size.d_model, size.heads * size.value_dim),
    )
