"""Named architectures, a few lines each; the file name is the registration.

A file holds `build(size, *, ...)`, whose keywords are the options of the architecture: their defaults and what they
mean stand there, and the parts that are built check their ranges.
"""

from collections.abc import Mapping
from inspect import Parameter

from rebracket.base import registry
from rebracket.nn.mixer import NOTHING, Mixer, MixerSize

PRESETS = registry.Registry(__name__, "preset", "build")


def names() -> tuple[str, ...]:
    """The names of all presets, sorted.

    Example:
        >>> "gated_deltanet" in names()
        True
    """
    return PRESETS.names()


def options(name: str) -> Mapping[str, Parameter]:
    """The options of a preset with their defaults.

    Raises:
        ValueError: If there is no such preset.

    Example:
        >>> {name: option.default for name, option in options("deltanet").items()}
        {'beta_max': 1.0, 'convolution': 4, 'feature': 'identity'}
    """
    return registry.options(PRESETS.load(name))


def make(name: str, size: MixerSize, chosen: Mapping[str, object] = NOTHING) -> Mixer:
    """The layer of that architecture in that size.

    Args:
        name: one of `names()`.
        size: its sizes.
        chosen: some of its `options`, by name.

    Raises:
        ValueError: If there is no such preset or option, or one is out of its range.

    Example:
        >>> import torch
        >>> size = MixerSize(d_model=8, heads=2, key_heads=2, key_dim=4, value_dim=5)
        >>> y, cache = make("retnet", size, {"rotary_base": 100.0})(torch.randn(1, 6, 8))
        >>> y.shape
        torch.Size([1, 6, 8])
        >>> make("retnet", size, {"rotary_bass": 100.0})
        Traceback (most recent call last):
        ...
        ValueError: preset 'retnet' has no option 'rotary_bass', did you mean 'rotary_base'?; known are convolution, \
feature, rotary_base
    """
    known = options(name)
    for option in chosen:
        if option not in known:
            raise ValueError(f"preset {name!r} has no option {option!r}{registry.nearest(option, sorted(known))}")
    return PRESETS.load(name)(size, **chosen)
