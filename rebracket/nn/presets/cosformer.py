"""cosFormer: rectified features, weighted by the cosine of the distance."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.mixer import Mixer, MixerSize


def build(size: MixerSize, *, convolution: int | None = None, feature: str = "relu", horizon: int = 4096) -> Mixer:
    """No decay, additive writes, output divided by the sum of keys.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k, a positive one.
        horizon: distance in tokens at which the weights have fallen to 0, >= 1.

    Source: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention".
    """
    phi = features.make(feature, size.key_dim)
    return LinearAttention(
        size,
        feature=phi,
        cosine=CosineWeights(phi.dim_out, horizon),
        normalize=True,
        convolution=convolution,
    )
