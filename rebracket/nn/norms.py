"""Norms: of the residual stream, of each head's output with its gate, and of keys; all in float32 at least."""

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.ops.precision import at_least_float32

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


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
        refuse("dim", dim, eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] in any float dtype to the same."""
        return weighted(x, self.weight, self.eps).to(x.dtype)

    def reset_parameters(self) -> None:
        """w = 1."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


@final
class HeadNorm(nn.Module):
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

    def __init__(self, value_dim: int, eps: float = 1e-5, activation: Literal["silu", "sigmoid"] | None = None) -> None:
        super().__init__()
        refuse("value_dim", value_dim, eps)
        if activation not in (None, *GATES):
            raise ValueError(f"activation must be None or one of {', '.join(GATES)}, got {activation!r}")
        self.eps, self.activation = eps, activation
        self.weight = nn.Parameter(torch.ones(value_dim))

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
        normed = weighted(o, self.weight, self.eps)
        if self.activation is None and gate is None:
            return normed.to(o.dtype)
        if self.activation is None or gate is None or gate.shape != o.shape:
            seen = None if gate is None else list(gate.shape)
            raise ValueError(f"gate must fit activation {self.activation!r} and o {list(o.shape)}, got {seen}")
        return (normed * GATES[self.activation](gate.to(normed.dtype))).to(o.dtype)

    def reset_parameters(self) -> None:
        """w = 1."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, activation={self.activation!r}"


@final
class GatedNorm(nn.Module):
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
        super().__init__()
        refuse("heads", heads, eps)
        refuse("value_dim", value_dim, eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads * value_dim))

    def forward(self, o: Tensor, gate: Tensor | None) -> Tensor:
        """Gates and norms.

        Args:
            o: [...,H,V], any float dtype.
            gate: the gate before its activation, of the shape of o.

        Returns:
            [...,H,V] in the dtype of o.

        Raises:
            ValueError: If the gate is missing or misshapen.
        """
        if gate is None or gate.shape != o.shape:
            seen = None if gate is None else list(gate.shape)
            raise ValueError(f"gate must have the shape of o, {list(o.shape)}, got {seen}")
        gated = at_least_float32(o) * F.silu(at_least_float32(gate))
        return weighted(gated.flatten(-2), self.weight, self.eps).view_as(o).to(o.dtype)

    def reset_parameters(self) -> None:
        """w = 1."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
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


def refuse(name: str, dim: int, eps: float) -> None:
    if dim < 1:
        raise ValueError(f"{name} must be at least 1, got {dim}")
    if not eps > 0:
        raise ValueError(f"eps must be above 0, got {eps}")
