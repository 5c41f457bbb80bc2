"""Layers that make what is written of tokens, keys and values, one file each; the file name is the registration.

A file holds one final subclass of `Write`. Its parameters without a default are sizes, named as those of `MixerSize`
(key_dim is the width of the keys after any feature map), or `decay`, the layer's decay.
"""

from rebracket.base.registry import Registry
from rebracket.nn.decays.base import Decay
from rebracket.nn.mixer import MixerSize, fitted
from rebracket.nn.writes.base import Write

WRITES = Registry(__name__, "write", Write)


def names() -> tuple[str, ...]:
    """The names of all write layers, sorted.

    Example:
        >>> "delta" in names()
        True
    """
    return WRITES.names()


def make(name: str, size: MixerSize, decay: Decay | None = None) -> Write:
    """The write layer of that name for a layer of that size.

    Args:
        name: one of `names()`.
        size: the layer's sizes.
        decay: the layer's decay, for a write that shares its weights.

    Raises:
        ValueError: If there is no such write.

    Example:
        >>> make("additive", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5))
        AdditiveWrite()
    """
    return fitted(WRITES.load(name), size, {"decay": decay})
