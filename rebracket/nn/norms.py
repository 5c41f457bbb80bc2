"""Norms: of the residual stream, of each head's output with its gate, and of keys; all in float32 at least."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.base.checks import number, one_of, whole
from rebracket.ops.precision import at_least_float32
from rebracket.ops.program import Builder, Value, not_lowered

Gate = Literal["silu", "sigmoid"]
GATES: dict[Gate, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}
UNIT_EPS = 1e-6


@final
class RMSNorm(nn.Module):
    """Every vector divided by its root mean square and weighted per entry.

    y = w * x / sqrt(mean(x^2) + eps)

    Args:
        dim: size of the vectors, >= 1.
        eps: added under the root, > 0.

    Raises:
        ValueError: If dim or eps is out of range.

    Cost: 3 dim multiplications.

    Source: Zhang and Sennrich 2019.

    Example:
        >>> RMSNorm(2, eps=1e-9)(torch.tensor([3.0, 4.0])).detach()
        tensor([0.8485, 1.1314])
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = number("eps", eps, 0)
        self.weight = nn.Parameter(torch.ones(whole("dim", dim)))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] in any float dtype to the same."""
        return weighted(x, self.weight, self.eps).to(x.dtype)

    def lower(self, build: Builder, x: Value) -> Value:
        """The operations of `forward`."""
        return build.normalize("rms", x, self.eps, weight=self.weight)

    def reset_parameters(self) -> None:
        """w = 1."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class OutputNorm(nn.Module, ABC):
    """A norm of the heads' outputs, which applies their gate.

    y = norm(o) * act(gate)

    Args:
        width: entries of w, >= 1.
        eps: added under the root, > 0.
        activation: of the gate, "silu" or "sigmoid"; None for a norm without a gate.

    Raises:
        ValueError: If eps is out of range or the activation unknown.

    Example:
        >>> isinstance(HeadNorm(5), OutputNorm)
        True
    """

    def __init__(self, width: int, eps: float, activation: Gate | None) -> None:
        super().__init__()
        one_of("activation", activation, (None, *GATES))
        self.eps: float = number("eps", eps, 0)
        self.activation: Gate | None = activation
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, o: Tensor, gate: Tensor | None = None) -> Tensor:
        """Norms and gates.

        Args:
            o: [...,H,V], any float dtype.
            gate: the gate before its activation, of the shape of o; exactly when the norm has an activation.

        Returns:
            [...,H,V] in the dtype of o.

        Raises:
            ValueError: If the gate is missing, misshapen or not wanted.
        """
        if (self.activation is None) != (gate is None) or (gate is not None and gate.shape != o.shape):
            seen = None if gate is None else list(gate.shape)
            raise ValueError(f"gate must fit activation {self.activation!r} and o {list(o.shape)}, got {seen}")
        if self.activation is None or gate is None:
            return self.normed(at_least_float32(o)).to(o.dtype)
        return self.gated(at_least_float32(o), GATES[self.activation](at_least_float32(gate))).to(o.dtype)

    def gated(self, o: Tensor, gate: Tensor) -> Tensor:
        """The norm times the activated gate, both in at least float32."""
        return self.normed(o) * gate

    @abstractmethod
    def normed(self, o: Tensor) -> Tensor:
        """The norm of o [...,H,V] in at least float32."""

    def lower(self, build: Builder, o: Value, gate: Value | None, heads: int) -> Value:
        """The operations of `forward` on o [H V]."""
        if self.activation is None or gate is None:
            return self.lower_normed(build, o, heads)
        return self.lower_gated(build, o, build.apply(self.activation, gate), heads)

    def lower_gated(self, build: Builder, o: Value, gate: Value, heads: int) -> Value:
        """Those of `gated`."""
        if type(self).gated is not OutputNorm.gated:
            not_lowered(self, "it has a `gated` and no `lower_gated`")
        return build.pair("multiply", self.lower_normed(build, o, heads), gate)

    def lower_normed(self, build: Builder, o: Value, heads: int) -> Value:
        """Those of `normed`."""
        not_lowered(self)

    def reset_parameters(self) -> None:
        """w = 1."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, activation={self.activation!r}"


@final
class HeadNorm(OutputNorm):
    """The output of each head divided by its root mean square, weighted, and gated if there is a gate.

    y = w * o / sqrt(mean(o^2) + eps) * act(gate)

    Args:
        value_dim: V, size of a head's output, >= 1; one w [V] serves all heads.
        eps: added under the root, > 0.
        activation: of the gate, "silu" or "sigmoid"; None for a norm without a gate.

    Raises:
        ValueError: If a size is out of range or the activation unknown.

    Cost: 4 V multiplications a head.

    Source: RetNet (Sun et al. 2023) and the gated models after it; a sigmoid in Kimi Delta Attention.

    Example:
        >>> norm = HeadNorm(5, activation="silu")
        >>> norm(torch.randn(2, 9, 3, 5), torch.randn(2, 9, 3, 5)).shape
        torch.Size([2, 9, 3, 5])
    """

    def __init__(self, value_dim: int, eps: float = 1e-5, activation: Gate | None = None) -> None:
        super().__init__(whole("value_dim", value_dim), eps, activation)

    def normed(self, o: Tensor) -> Tensor:
        return weighted(o, self.weight, self.eps)

    def lower_normed(self, build: Builder, o: Value, heads: int) -> Value:
        return build.normalize("rms", o, self.eps, groups=heads, weight=self.weight)


@final
class JointNorm(OutputNorm):
    """The outputs of all heads together divided by their root mean square, weighted, and gated if there is a gate.

    y = w * o / sqrt(mean(o^2) + eps) * act(gate),   the mean over all H V entries of a token

    Args:
        heads: H, >= 1.
        value_dim: V, size of a head's output, >= 1; w is [H V].
        eps: added under the root, > 0.
        activation: of the gate, "silu" or "sigmoid"; None for a norm without a gate.

    Raises:
        ValueError: If a size is out of range or the activation unknown.

    Cost: 4 V multiplications a head.

    Source: HGRN2 (Qin et al. 2024), without a gate; MiniMax-01, with a sigmoid.

    Example:
        >>> JointNorm(3, 5)(torch.randn(2, 9, 3, 5)).shape
        torch.Size([2, 9, 3, 5])
    """

    def __init__(self, heads: int, value_dim: int, eps: float = 1e-5, activation: Gate | None = None) -> None:
        super().__init__(whole("heads", heads) * whole("value_dim", value_dim), eps, activation)

    def normed(self, o: Tensor) -> Tensor:
        return weighted(o.flatten(-2), self.weight, self.eps).view_as(o)

    def lower_normed(self, build: Builder, o: Value, heads: int) -> Value:
        return build.normalize("rms", o, self.eps, weight=self.weight)


@final
class GatedNorm(OutputNorm):
    """The gated outputs of all heads together divided by their root mean square, and weighted.

    y = w * z / sqrt(mean(z^2) + eps),   z = o * silu(gate), the mean over all H V entries of a token

    Args:
        heads: H, >= 1.
        value_dim: V, size of a head's output, >= 1; w is [H V].
        eps: added under the root, > 0.

    Raises:
        ValueError: If a size is out of range.

    Cost: 4 V multiplications a head.

    Source: Dao and Gu 2024 (Mamba-2), which gates before it norms.

    Example:
        >>> norm = GatedNorm(3, 5)
        >>> norm(torch.randn(2, 9, 3, 5), torch.randn(2, 9, 3, 5)).shape
        torch.Size([2, 9, 3, 5])
    """

    def __init__(self, heads: int, value_dim: int, eps: float = 1e-5) -> None:
        super().__init__(whole("heads", heads) * whole("value_dim", value_dim), eps, "silu")

    def gated(self, o: Tensor, gate: Tensor) -> Tensor:
        return self.normed(o * gate)

    def normed(self, o: Tensor) -> Tensor:
        return weighted(o.flatten(-2), self.weight, self.eps).view_as(o)

    def lower_normed(self, build: Builder, o: Value, heads: int) -> Value:
        return build.normalize("rms", o, self.eps, weight=self.weight)

    def lower_gated(self, build: Builder, o: Value, gate: Value, heads: int) -> Value:
        return self.lower_normed(build, build.pair("multiply", o, gate), heads)


@final
class CenteredNorm(OutputNorm):
    """The output of each head less its mean, divided by its standard deviation, weighted and shifted, and gated.

    y = (w * (o - mean(o)) / sqrt(var(o) + eps) + b) * act(gate)

    Args:
        heads: H, >= 1.
        value_dim: V, size of a head's output, >= 1; w and b are [H V].
        eps: added under the root, > 0.
        activation: of the gate, "silu" or "sigmoid"; None for a norm without a gate.

    Raises:
        ValueError: If a size is out of range or the activation unknown.

    Cost: 6 V multiplications a head.

    Source: the group norm of RWKV-5 and RWKV-6 (Peng et al. 2024), one group a head.

    Example:
        >>> CenteredNorm(3, 5)(torch.randn(2, 9, 3, 5)).shape
        torch.Size([2, 9, 3, 5])
    """

    def __init__(self, heads: int, value_dim: int, eps: float = 1e-5, activation: Gate | None = None) -> None:
        super().__init__(whole("heads", heads) * whole("value_dim", value_dim), eps, activation)
        self.bias = nn.Parameter(torch.zeros(heads * value_dim))

    def normed(self, o: Tensor) -> Tensor:
        weight, bias = (x.to(o.dtype).view(o.shape[-2:]) for x in (self.weight, self.bias))
        return F.layer_norm(o, o.shape[-1:], eps=self.eps) * weight + bias

    def reset_parameters(self) -> None:
        """w = 1, b = 0."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)

    def lower_normed(self, build: Builder, o: Value, heads: int) -> Value:
        return build.normalize("centered", o, self.eps, groups=heads, weight=self.weight, bias=self.bias)


def l2_normalize(x: Tensor, eps: float = UNIT_EPS) -> Tensor:
    """Vectors divided by their length.

    y = x / sqrt(sum(x^2) + eps)

    Args:
        x: [...,D], any float dtype.
        eps: added under the root, > 0; a vector of zeros stays one, with finite gradients.

    Returns:
        [...,D] in the dtype of x, computed in float32 at least.

    Cost: 2 D multiplications.

    Source: Yang et al. 2024, keys and queries of the delta rule.

    Example:
        >>> l2_normalize(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """
    wide = at_least_float32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def weighted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weighted norm in at least float32; x and w must share a dtype for torch's fused kernel."""
    wide = at_least_float32(x)
    return F.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps)
