"""DeltaNet: each write replaces what its key recalled."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.writes.delta import DeltaWrite


def build(size: MixerSize, *, beta_max: float = 1.0, convolution: int = 4, feature: str = "identity") -> Mixer:
    """No decay, delta writes with unit keys after a short convolution, output normed.

    Args:
        size: its sizes.
        beta_max: largest strength of a write, in (0, 2]; above 1 the transition may have negative eigenvalues.
        convolution: width of the short convolution in tokens, >= 1; 1 mixes no tokens.
        feature: name of the feature map of q and k.

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(feature, size.key_dim)),
        write=DeltaWrite(size.d_model, size.heads, beta_max),
        convolution=convolution,
        norm=HeadNorm(size.value_dim, size.norm_eps),
    )
