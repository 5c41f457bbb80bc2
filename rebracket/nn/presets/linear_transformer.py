"""The linear transformer: a feature map in the place of softmax, and its normalizer."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize

OPTIONS = ("convolution", "feature")


def build(size: MixerSize) -> Mixer:
    """No decay, additive writes, positive features (elu + 1), output divided by the sum of keys.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs".
    """
    feature = features.make(size.feature or "elu1", size.key_dim)
    return LinearAttention(size, feature=feature, normalize=True, convolution=size.convolution)
