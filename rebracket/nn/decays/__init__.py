"""Layers that produce log-decays from the tokens, one file each; the file name is the registration.

A file holds one final subclass of `Decay` and `build(size)`, which makes it for the sizes of a layer.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from rebracket.base.registry import Registry
from rebracket.nn.mixer import MixerSize

DECAYS = Registry(__name__, "decay", "build")


class Decay(nn.Module, ABC):
    """A layer from tokens to log-decays, natural log, <= 0, at least float32, for a stretch of tokens or one alike.

    Weights that no optimizer should shrink have one axis (see `weight_decay_groups`).

    Example:
        >>> import torch
        >>> decay = make("retnet", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5))
        >>> isinstance(decay, Decay), decay(torch.ones(1, 6, 8)).shape
        (True, torch.Size([2]))
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[H], [B,T,H] or [B,T,H,K] for x [B,T,d_model]; the same without T for x [B,d_model]."""

    def strength(self, log_decay: Tensor) -> Tensor | None:
        """What a token's values are multiplied by, [B,T,H], where the decay decides that too; None for 1.

        Args:
            log_decay: what `forward` gave.
        """
        return None

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws every weight again."""


def names() -> tuple[str, ...]:
    """The decays there are.

    Example:
        >>> "retnet" in names()
        True
    """
    return DECAYS.names()


def make(name: str, size: MixerSize) -> Decay:
    """The decay of that name for a layer of that size.

    Args:
        name: one of `names()`.
        size: the layer's sizes; key_dim is the width of the keys that are written, after any feature map.

    Raises:
        ValueError: If there is no such decay.

    Example:
        >>> import torch
        >>> size = MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5)
        >>> make("gla", size)(torch.ones(1, 6, 8)).shape
        torch.Size([1, 6, 2, 3])
    """
    return DECAYS.load(name)(size)
