"""Softmax attention, whose cache grows with the text."""

from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.rotary import Rotary
from rebracket.nn.softmax import SoftmaxAttention


def build(size: MixerSize, *, rotary_base: float = 10000.0, window: int | None = None) -> Mixer:
    """Grouped heads, rotary positions, everything before or a window of it.

    Args:
        size: its sizes.
        rotary_base: base of the wavelengths of the rotary positions, > 1.
        window: tokens that are read back, the present one included, >= 1; None for all.

    Source: Vaswani et al. 2017; the common form since Touvron et al. 2023 (LLaMA).
    """
    return SoftmaxAttention(size, Rotary(size.key_dim, rotary_base), window)
