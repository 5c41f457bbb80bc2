"""The linear transformer: a feature map instead of softmax, and its normalizer."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize


def build(size: MixerSize, *, convolution: int | None = None, feature: str = "elu1") -> Mixer:
    """No decay, additive writes, positive features (elu + 1), output divided by the sum of keys.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.
        feature: name of the feature map of q and k, a positive one.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs".
    """
    phi = features.make(feature, size.key_dim)
    return LinearAttention(size, feature=phi, normalize=True, convolution=convolution)
