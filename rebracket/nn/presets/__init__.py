"""Named architectures, a few lines each; the file name is the registration.

A file holds `OPTIONS`, the choices of `MixerSize` that the architecture leaves open, and `build(size)`.
"""

from rebracket.base.registry import Registry
from rebracket.nn.mixer import Mixer, MixerSize

PRESETS = Registry(__name__, "preset", "build")


def names() -> tuple[str, ...]:
    """The presets there are.

    Example:
        >>> "gated_deltanet" in names()
        True
    """
    return PRESETS.names()


def make(name: str, size: MixerSize) -> Mixer:
    """The layer of that architecture in that size.

    Args:
        name: one of `names()`.
        size: its sizes and choices.

    Raises:
        ValueError: If there is no such preset, or it does not know one of the choices made.

    Example:
        >>> import torch
        >>> layer = make("retnet", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=4, value_dim=5))
        >>> y, cache = layer(torch.randn(1, 6, 8))
        >>> y.shape
        torch.Size([1, 6, 8])
    """
    check(name, size)
    return PRESETS.load(name)(size)


def check(name: str, size: MixerSize) -> None:
    """Raises what `make` would raise for a name or a choice that is unknown.

    Example:
        >>> check("retnet", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=4, value_dim=5, window=3))
        Traceback (most recent call last):
        ...
        ValueError: preset 'retnet' has no choice of window; its choices are: convolution, feature, rotary_base
    """
    known = PRESETS.module(name).OPTIONS
    unknown = [choice for choice in size.choices() if choice not in known]
    if unknown:
        raise ValueError(f"preset {name!r} has no choice of {', '.join(unknown)}; its choices are: {', '.join(known)}")
