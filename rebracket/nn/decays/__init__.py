"""Layers that produce log-decays from the tokens, one file each; the file name is the registration.

A file holds one final subclass of `Decay`. Its parameters without a default are sizes, named as those of `MixerSize`;
key_dim is the width of the keys that are written, after any feature map.
"""

from rebracket.base.registry import Registry
from rebracket.nn.decays.base import Decay
from rebracket.nn.mixer import MixerSize, fitted

DECAYS = Registry(__name__, "decay", Decay)


def names() -> tuple[str, ...]:
    """The names of all decays, sorted.

    Example:
        >>> "retnet" in names()
        True
    """
    return DECAYS.names()


def make(name: str, size: MixerSize) -> Decay:
    """The decay of that name for a layer of that size.

    Args:
        name: one of `names()`.
        size: the layer's sizes.

    Raises:
        ValueError: If there is no such decay.

    Example:
        >>> import torch
        >>> size = MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5)
        >>> make("gla", size)(torch.ones(1, 6, 8)).shape
        torch.Size([1, 6, 2, 3])
    """
    return fitted(DECAYS.load(name), size)
