"""The part of a block that works on each token alone."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.projections import Projection, residual_gain
from rebracket.ops.program import Builder, Value


@final
class GatedMLP(nn.Module):
    """A gated two-layer network.

    y = W_down (silu(W_gate x) * W_up x)

    Args:
        d_model: width of the residual stream.
        dim: width of the middle, >= 1.
        layers: blocks of the model, which set the scale of the last projection's first weights.

    Returns:
        y [..., d_model].

    Cost: 6 d_model dim operations a token. Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU).

    Example:
        >>> import torch
        >>> GatedMLP(8, 12)(torch.ones(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, d_model: int, dim: int, layers: int = 1) -> None:
        super().__init__()
        self.gate_up = Projection(d_model, 2 * dim)
        self.down = Projection(dim, d_model, residual_gain(d_model, layers))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def lower(self, build: Builder, x: Value, plus: Value) -> Value:
        """The operations of `forward`, and of a sum with `plus`."""
        gate_up = self.gate_up.lower(build, x)
        gate, up = gate_up.split(gate_up.width // 2, gate_up.width // 2)
        return self.down.lower(build, build.pair("multiply", build.apply("silu", gate), up), plus)

    def reset_parameters(self) -> None:
        """Draws the weights again."""
        self.gate_up.reset_parameters()
        self.down.reset_parameters()
