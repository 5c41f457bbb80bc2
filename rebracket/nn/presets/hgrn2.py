"""HGRN2: keys are what the decay takes away, so that a channel takes in as much as it forgets."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.hgrn2 import HGRN2Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import JointNorm
from rebracket.nn.writes.complement import ComplementWrite


def build(size: MixerSize, *, convolution: int | None = None) -> Mixer:
    """A decay per key channel above a bound that rises from layer to layer, output normed over all heads, no gate.

    Queries go through SiLU; a convolution mixes q and v, without an activation of its own.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.

    Source: Qin et al. 2024, "HGRN2: Gated Linear RNNs with State Expansion".
    """
    return LinearAttention(
        size,
        feature=features.make("silu", size.key_dim),
        decay=HGRN2Decay(size.d_model, size.heads, size.key_dim, size.layer, size.layers),
        write=ComplementWrite(),
        convolution=convolution,
        silu=False,
        norm=JointNorm(size.heads, size.value_dim, size.norm_eps),
    )
