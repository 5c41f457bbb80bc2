"""What every write layer is: from tokens, keys and values to all that the operator writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from rebracket.ops.program import Builder, Value, not_lowered
from rebracket.ops.write import WriteRule


@final
@dataclass(frozen=True, eq=False)
class Written:
    """What is written for T tokens, n entries each: arguments of `linear_attention`.

    Args:
        k: keys [B,T n,Hq,K], or with as many heads as v.
        v: values [B,T n,H,V].
        rule: the write rule; its `entries` are n.
        bonus: weight of the present token [H,K], or None.

    Example:
        >>> import torch
        >>> from rebracket import Delta
        >>> Written(torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5), Delta(0.5)).rule
        Delta(beta=0.5)
    """

    k: Tensor
    v: Tensor
    rule: WriteRule
    bonus: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class LoweredWrite:
    """What one token writes as values of a program: arguments of its recurrence, n entries each.

    Args:
        k: keys [n Hk K].
        v: values [n H V].
        key_heads: Hk, heads of k and r.
        heads: H.
        r: as k, or None to read nothing back.
        beta: [n H], or None for 1.
        bonus: weight of the present token [H,K], or None.

    Example:
        >>> LoweredWrite(Value(0, 6), Value(1, 10), key_heads=2, heads=2).beta is None
        True
    """

    k: Value
    v: Value
    key_heads: int
    heads: int
    r: Value | None = None
    beta: Value | None = None
    bonus: Tensor | None = None


class Write(nn.Module, ABC):
    """A layer from tokens, keys and values to what is written, for a sequence and for one token alike.

    Weights that no optimizer should shrink have one axis (see `weight_decay_groups`).

    Example:
        >>> import torch
        >>> from rebracket.nn import DeltaWrite
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> DeltaWrite(8, 2)(x, k, v, None).rule.beta.shape
        torch.Size([1, 6, 2])
    """

    @property
    def entries(self) -> int:
        """Values that the layer projects for a token, n."""
        return 1

    @property
    def key_entries(self) -> int:
        """Keys that the layer projects for a token: n, or 0 where the write makes keys of its own."""
        return self.entries

    @abstractmethod
    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        """What is written.

        Args:
            x: tokens [B,T,d_model].
            k: keys [B,T n,Hq,K], features already; [B,T,0,K] where none are projected.
            v: values [B,T n,H,V].
            log_decay: what the layer's decay gave, or None without one.

        Of one token everything comes without T: x [B,d_model], k [B,Hq,K] or, with several entries, [B,n,Hq,K].
        """

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws every weight again."""

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        """The operations of `forward` for one token; `given` are its keys and values, with weight 1."""
        not_lowered(self)
