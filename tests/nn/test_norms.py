"""Norms against their formulas, in every precision."""

import pytest
import torch
from torch import Tensor

from rebracket.nn.norms import CenteredNorm, GatedNorm, HeadNorm, JointNorm, RMSNorm, l2_normalize

B, T, H, V = 2, 3, 4, 5
SIGMOID = {"silu": lambda x: x / (1 + (-x).exp()), "sigmoid": lambda x: 1 / (1 + (-x).exp())}


def sample(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


def literal(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.stack([row * weight / ((row**2).sum() / len(row) + eps) ** 0.5 for row in x.reshape(-1, x.shape[-1])])


def weighted(norm: RMSNorm | HeadNorm | JointNorm | CenteredNorm) -> Tensor:
    """The norm's weight, made unlike 1."""
    torch.nn.init.normal_(norm.weight)
    return norm.weight.detach()


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_the_root_mean_square_is_divided_out(eps: float):
    x, norm = sample(B, T, V), RMSNorm(V, eps).double()
    weight = weighted(norm)
    torch.testing.assert_close(norm(x), literal(x, weight, eps).reshape(x.shape))


@pytest.mark.parametrize("activation", [None, "silu", "sigmoid"])
def test_each_head_is_normed_by_itself_and_gated(activation):
    o, gate, norm = sample(B, T, H, V), sample(B, T, H, V).flip(0), HeadNorm(V, 0.1, activation).double()
    expected = literal(o, weighted(norm), 0.1).reshape(o.shape)
    if activation:
        expected = expected * SIGMOID[activation](gate)
    torch.testing.assert_close(norm(o, gate if activation else None), expected)
    torch.testing.assert_close(norm(o[:, 0], gate[:, 0] if activation else None), expected[:, 0])


def test_a_gate_is_there_exactly_when_it_is_wanted():
    o = torch.randn(B, T, H, V)
    with pytest.raises(ValueError, match="gate must fit activation None"):
        HeadNorm(V)(o, o)
    with pytest.raises(ValueError, match="got None"):
        HeadNorm(V, activation="silu")(o)
    with pytest.raises(ValueError, match=r"got \[2, 3, 4, 4\]"):
        HeadNorm(V, activation="silu")(o, o[..., 1:])


def test_heads_are_gated_and_then_normed_together():
    norm, o, gate = GatedNorm(3, 4, eps=0.1).double(), sample(2, 5, 3, 4), sample(2, 5, 3, 4)
    with torch.no_grad():
        norm.weight.copy_(torch.arange(12.0))
    gated = (o * gate / (1 + torch.exp(-gate))).flatten(2)
    wanted = torch.arange(12.0) * gated / (gated.square().mean(-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(norm(o, gate), wanted.unflatten(2, (3, 4)), rtol=1e-12, atol=1e-12)
    assert norm(o.bfloat16(), gate.bfloat16()).dtype == torch.bfloat16
    for wrong in (None, gate[..., 1:]):
        with pytest.raises(ValueError, match=r"gate must fit activation 'silu' and o \[2, 5, 3, 4\]"):
            norm(o, wrong)


@pytest.mark.parametrize("activation", [None, "silu", "sigmoid"])
def test_heads_are_normed_together_and_then_gated(activation):
    o, gate, norm = sample(B, T, H, V), sample(B, T, H, V).flip(0), JointNorm(H, V, 0.1, activation).double()
    expected = literal(o.flatten(-2), weighted(norm), 0.1).reshape(o.shape)
    if activation:
        expected = expected * SIGMOID[activation](gate)
    torch.testing.assert_close(norm(o, gate if activation else None), expected)
    torch.testing.assert_close(norm(o[:, 0], gate[:, 0] if activation else None), expected[:, 0])


@pytest.mark.parametrize("activation", [None, "silu", "sigmoid"])
def test_each_head_is_centred_weighted_shifted_and_gated(activation):
    o, gate, norm = 3 + sample(B, T, H, V), sample(B, T, H, V).flip(0), CenteredNorm(H, V, 0.1, activation).double()
    weight = weighted(norm).reshape(H, V)
    with torch.no_grad():
        norm.bias.copy_(torch.arange(H * V))
    centred = o - o.sum(-1, keepdim=True) / V
    expected = weight * centred / ((centred**2).sum(-1, keepdim=True) / V + 0.1).sqrt()
    expected = expected + torch.arange(H * V).reshape(H, V)
    if activation:
        expected = expected * SIGMOID[activation](gate)
    torch.testing.assert_close(norm(o, gate if activation else None), expected)
    torch.testing.assert_close(norm(o[:, 0], gate[:, 0] if activation else None), expected[:, 0])


def test_vectors_are_brought_to_unit_length():
    x = sample(B, T, V)
    expected = torch.stack([row / ((row**2).sum() + 1e-6) ** 0.5 for row in x.reshape(-1, V)]).reshape(x.shape)
    torch.testing.assert_close(l2_normalize(x), expected)
    torch.testing.assert_close(
        l2_normalize(x, 0.5).norm(dim=-1), (x.norm(dim=-1) ** 2 / (x.norm(dim=-1) ** 2 + 0.5)).sqrt()
    )


def test_zeros_stay_zeros_with_finite_gradients():
    for function in (l2_normalize, RMSNorm(V), HeadNorm(V), JointNorm(2, V), CenteredNorm(2, V)):
        x = torch.zeros(2, V, requires_grad=True)
        y = function(x)
        y.sum().backward()
        assert bool((y == 0).all())
        assert x.grad is not None
        assert bool(x.grad.isfinite().all())


def test_gradients_are_those_of_finite_differences():
    x = sample(2, V).requires_grad_()
    gate = sample(3, V)[1:].requires_grad_()
    assert torch.autograd.gradcheck(l2_normalize, x)
    assert torch.autograd.gradcheck(RMSNorm(V).double(), x)
    for activation in ("silu", "sigmoid"):
        assert torch.autograd.gradcheck(HeadNorm(V, activation=activation).double(), (x, gate))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_one_rounding_of_float32(dtype: torch.dtype):
    # Squares of 300 overflow float16: the norm must be computed wider.
    x = (300 * sample(B, H, V)).to(dtype)
    norm, gated = RMSNorm(V), HeadNorm(V, activation="silu")
    assert torch.equal(l2_normalize(x), l2_normalize(x.float()).to(dtype))
    assert torch.equal(norm(x), norm(x.float()).to(dtype))
    assert torch.equal(gated(x, x / 300), gated(x.float(), (x / 300).float()).to(dtype))
    for joined in (JointNorm(H, V, activation="silu"), CenteredNorm(H, V, activation="silu")):
        assert torch.equal(joined(x, x / 300), joined(x.float(), (x / 300).float()).to(dtype))
    assert torch.equal(norm.to(dtype)(x), RMSNorm(V)(x.float()).to(dtype))


def test_autocast_changes_nothing():
    x = torch.randn(B, T, H, V)
    for function in (l2_normalize, RMSNorm(V), HeadNorm(V), JointNorm(H, V), CenteredNorm(H, V)):
        outside = function(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(function(x), outside)


def test_norms_born_on_meta_are_set_afterwards():
    for build in (lambda: RMSNorm(V), lambda: HeadNorm(V), lambda: JointNorm(1, V), lambda: CenteredNorm(1, V)):
        with torch.device("meta"):
            norm = build()
        norm = norm.to_empty(device="cpu")
        norm.reset_parameters()
        assert torch.equal(norm.weight, torch.ones(V))
        assert not isinstance(norm, CenteredNorm) or torch.equal(norm.bias, torch.zeros(V))


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="dim must"):
        RMSNorm(0)
    with pytest.raises(ValueError, match="eps must"):
        RMSNorm(4, 0.0)
    with pytest.raises(ValueError, match="value_dim must"):
        HeadNorm(0)
    for kind in (JointNorm, GatedNorm, CenteredNorm):
        with pytest.raises(ValueError, match="heads must"):
            kind(0, V)
    with pytest.raises(ValueError, match="activation must be one of None, 'silu', 'sigmoid'"):
        HeadNorm(4, activation="relu")  # pyright: ignore[reportArgumentType]
