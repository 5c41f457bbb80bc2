"""Performer: random features whose kernel is softmax's on average."""

from rebracket import features
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize


def build(size: MixerSize, *, convolution: int | None = None) -> Mixer:
    """No decay, additive writes, K log K positive orthogonal random features, output divided by the sum of keys.

    The largest exponent of a query is subtracted, which the normalizer divides out.

    Args:
        size: its sizes.
        convolution: width of a short convolution in tokens, >= 1, or None for none.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers".
    """
    feature = features.make("favor", size.key_dim, {"stabilized": True})
    return LinearAttention(size, feature=feature, normalize=True, convolution=convolution)
