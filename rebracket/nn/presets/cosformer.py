"""cosFormer: rectified features, weighted by the cosine of the distance."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.mixer import Mixer, MixerSize

OPTIONS = ("convolution", "feature", "horizon")


def build(size: MixerSize) -> Mixer:
    """No decay, additive writes, output divided by the sum of keys; the weights reach back 4096 tokens.

    Source: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention".
    """
    feature = features.make(size.feature or "relu", size.key_dim)
    return LinearAttention(
        size,
        feature=feature,
        cosine=CosineWeights(feature.dim_out, size.horizon or 4096),
        normalize=True,
        convolution=size.convolution,
    )
