"""DeltaNet: each write replaces what its key recalled."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.norms import HeadNorm
from rebracket.nn.unit import UnitFeatures
from rebracket.nn.writes import DeltaWrite

OPTIONS = ("beta_max", "convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """No decay, delta writes with unit keys after a short convolution, output normed.

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".
    """
    return LinearAttention(
        size,
        feature=UnitFeatures(features.make(size.feature or "identity", size.key_dim)),
        write=DeltaWrite(size.d_model, size.heads, size.beta_max or 1.0),
        convolution=size.convolution or 4,
        norm=HeadNorm(size.value_dim, size.norm_eps),
    )
