"""What every layer that mixes tokens is: a function of a sequence with a cache that continues it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from rebracket.base.checks import number, whole
from rebracket.base.registry import options
from rebracket.base.tensors import map_tensors
from rebracket.nn.cache import LayerCache
from rebracket.ops.checks import Mode
from rebracket.ops.program import Builder, Value, not_lowered

Part = TypeVar("Part")
NOTHING: Mapping[str, object] = MappingProxyType({})


@final
@dataclass(frozen=True)
class MixerSize:
    """The sizes of a layer; none of them follows from another.

    Args:
        d_model: width of the residual stream.
        heads: heads of v (of q for softmax attention), H.
        key_heads: heads of q and k (of k and v for softmax attention), Hq; divides heads.
        key_dim: width of one head of q and k, K.
        value_dim: width of one head of v, V.
        layer: which block of the model this is, from 0.
        layers: blocks of the model; sets the first scale of the output projection.
        norm_eps: added under the square root of the output norm, in (0, 1].

    Raises:
        ValueError: If a size is out of its range, or key_heads does not divide heads.

    Example:
        >>> MixerSize(d_model=16, heads=4, key_heads=2, key_dim=3, value_dim=5).heads
        4
    """

    d_model: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    layer: int = 0
    layers: int = 1
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "key_heads", "key_dim", "value_dim", "layers"):
            whole(name, getattr(self, name))
        if self.heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads, got {self.key_heads} for {self.heads} heads")
        whole("layer", self.layer, 0, self.layers - 1)
        number("norm_eps", self.norm_eps, 0, 1)


def fitted(kind: Callable[..., Part], size: MixerSize, others: Mapping[str, object] = NOTHING) -> Part:
    """A part of a layer, each parameter without a default given the size of that name.

    Args:
        kind: the class; its parameters with a default keep it.
        size: the layer's sizes.
        others: further values by name.

    Raises:
        TypeError: If a parameter without a default has no such name.
    """
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name for name, x in inspect.signature(kind).parameters.items() if x.kind not in several}
    needed, known = named - options(kind).keys(), {**vars(size), **others}
    if needed - known.keys():
        unknown = ", ".join(sorted(needed - known.keys()))
        raise TypeError(f"{kind.__name__}: {unknown} must be named as one of {', '.join(known)}, or have a default")
    return kind(**{name: known[name] for name in needed})


def rows_of(x: Tensor, cu_seqlens: Tensor | None) -> int:
    """N, the sequences of a call: rows of x, or as many as are packed into one."""
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def outside_inference(cache: LayerCache) -> LayerCache:
    """The cache; outside inference mode copies of what was made inside, which no gradient could be computed from."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return cache
    if not any(x.is_inference() for x in cache.tensors().values()):
        return cache
    return map_tensors(cache, lambda _, x: x.clone() if x.is_inference() else x)


class Mixer(nn.Module, ABC):
    """A causal layer over time whose past is a `LayerCache`.

    y_t = f(x_0, ..., x_t); the cache after t tokens is all that later tokens need of them.

    Args:
        size: the sizes it was built from.

    Example:
        >>> import torch
        >>> from rebracket.nn import presets
        >>> mixer = presets.make("gla", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5))
        >>> y, cache = mixer(torch.ones(1, 6, 8))
        >>> isinstance(mixer, Mixer), y.shape
        (True, torch.Size([1, 6, 8]))
    """

    def __init__(self, size: MixerSize) -> None:
        super().__init__()
        self.size = size

    @final
    def forward(
        self,
        x: Tensor,
        *,
        cache: LayerCache | None = None,
        cu_seqlens: Tensor | None = None,
        mode: Mode = "auto",
        inplace: bool = False,
    ) -> tuple[Tensor, LayerCache]:
        """Reads a sequence, or the next part of one, or one token of each row as `step` does.

        Args:
            x: [B,T,d_model], B = 1 when packed; with a cache also [B,d_model].
            cache: the cache after the tokens before these, or None at the start.
            cu_seqlens: [N+1] bounds of sequences packed into one row; the cache then has N rows.
            mode: how the operator computes: "parallel", "chunk", "recurrent" or "auto".
            inplace: of one token a row: as in `step`.

        Returns:
            y in the shape of x, and the cache from which to continue.
        """
        cache = None if cache is None else outside_inference(cache)
        if x.ndim == 2 and cache is not None and cu_seqlens is None:
            return self.token(x, cache, inplace)
        return self.sequence(x, cache, cu_seqlens, mode)

    @final
    def step(self, x: Tensor, cache: LayerCache, *, inplace: bool = False) -> tuple[Tensor, LayerCache]:
        """Reads one token of each row, between the hooks of the layer.

        Args:
            x: [B,d_model].
            cache: the cache after the tokens before; `empty_cache` at the start.
            inplace: write the new state over the old one; without gradients only.

        Returns:
            y [B,d_model] and the cache from which to continue.
        """
        self.check_shape(x, "B,d_model")
        return self(x, cache=cache, inplace=inplace)

    @abstractmethod
    def sequence(
        self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode
    ) -> tuple[Tensor, LayerCache]:
        """What `forward` does with a sequence."""

    @abstractmethod
    def token(self, x: Tensor, cache: LayerCache, inplace: bool) -> tuple[Tensor, LayerCache]:
        """What `forward` and `step` do with one token of each row, x [B,d_model]."""

    @abstractmethod
    def empty_cache(
        self, rows: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LayerCache:
        """The cache of `rows` sequences before their first token; dtype and device default to those of the weights."""

    @abstractmethod
    def state_nbytes(self, tokens: int) -> int:
        """Bytes of one sequence's cache after `tokens` tokens, when activations have the weights' dtype."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws every weight again and recomputes every buffer, in place."""

    def lower(self, build: Builder, x: Value, plus: Value) -> Value:
        """The operations of one token x [d_model], and of a sum of y with `plus`."""
        not_lowered(self)

    def check_shape(self, x: Tensor, axes: str) -> None:
        """Raises unless x has the axes that the letters name, the last of width d_model."""
        wanted = axes.split(",")
        if x.ndim != len(wanted) or x.shape[-1] != self.size.d_model:
            raise ValueError(f"x must be [{axes}] with d_model {self.size.d_model}, got {list(x.shape)}")
