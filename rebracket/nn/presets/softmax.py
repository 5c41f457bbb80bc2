"""Softmax attention, whose cache grows with the text."""

from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.rotary import Rotary
from rebracket.nn.softmax import SoftmaxAttention

OPTIONS = ("rotary_base", "window")


def build(size: MixerSize) -> Mixer:
    """Grouped heads, rotary positions, everything before or a window of it.

    Source: Vaswani et al. 2017; the common form since Touvron et al. 2023 (LLaMA).
    """
    return SoftmaxAttention(size, Rotary(size.key_dim, size.rotary_base or 10000.0))
