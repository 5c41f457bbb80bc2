"""Operators that torch cannot look into have every derivative that torch asks for, or refuse it by name."""

from collections.abc import Callable
from typing import Any, final

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

import rebracket as rb
from rebracket.ops.backend import INSTALLED
from rebracket.ops.convolution import short_convolution
from rebracket.testing.budgets import error

LIMIT = 2e-5
"""A second derivative is a sum of several first ones, each within 5e-6 (float32 in `rebracket.testing.budgets`)."""
Run = Callable[..., Tensor]


def number(*results: Tensor | None) -> Tensor:
    """One number that depends on all results by more than their sum."""
    return sum((x.sin() * (i + 1)).sum() for i, x in enumerate(results) if x is not None)  # type: ignore[return-value]


def delta(backend: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, memory: Tensor) -> Tensor:
    log_decay = -torch.nn.functional.softplus(decay)
    write, state = rb.Delta(beta.sigmoid()), rb.State(memory)
    out, after = rb.linear_attention(q, k, v, log_decay=log_decay, write=write, state=state, backend=backend)
    return number(out, after.memory)


def normalized(backend: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out, state = rb.linear_attention(q.exp(), k.exp(), v, normalize=True, backend=backend)
    return number(out, state.memory, state.key_sum)


def itself(backend: str, x: Tensor) -> Tensor:
    """One tensor as query, key and value."""
    return number(rb.linear_attention(x, x, x, write=rb.Delta(0.5), backend=backend).out)


def convolution(backend: str, x: Tensor, weight: Tensor, bias: Tensor, tail: Tensor) -> Tensor:
    return number(*short_convolution(x, weight, bias, tail, activation="silu", backend=backend))


T = 20
CALLS: dict[str, tuple[Run, list[tuple[int, ...]]]] = {
    "delta": (delta, [(2, T, 3, 4), (2, T, 3, 4), (2, T, 3, 5), (2, T, 3), (2, T, 3, 4), (2, 3, 4, 5)]),
    "normalized": (normalized, [(2, T, 3, 4), (2, T, 3, 4), (2, T, 3, 5)]),
    "itself": (itself, [(2, T, 3, 4)]),
    "convolution": (convolution, [(2, T, 7), (7, 4), (7,), (2, 3, 7)]),
}


def inputs(name: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    return [0.5 * torch.randn(shape, generator=generator).to(dtype) for shape in CALLS[name][1]]


def agree(found: Any, wanted: Any) -> None:
    """Every tensor of the first within the limit of its like in the second, which is float64."""
    pairs = zip(tree_leaves(found), tree_leaves(wanted), strict=True)
    for i, (x, y) in enumerate(pairs):
        assert error(x, y) < LIMIT, (i, error(x, y))


def penalty(run: Run, backend: str, tensors: list[Tensor]) -> list[Tensor]:
    """First derivatives, and those of the sum of their squares."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    first = torch.autograd.grad(run(backend, *leaves), leaves, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)  # type: ignore[arg-type]
    return [*(x.detach() for x in first), *second]


@final
class Frozen(torch.autograd.Function):
    """x^2 whose gradient is right but has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2 * ctx.saved_tensors[0].detach()


def test_a_missing_part_of_a_second_derivative_would_be_seen():
    run, tensors = CALLS["itself"][0], inputs("itself", torch.float64)
    wanted = penalty(lambda backend, x: run(backend, x * x), "reference", tensors)
    cut = penalty(lambda backend, x: run(backend, Frozen.apply(x)), "reference", tensors)
    agree(cut[0], wanted[0])
    with pytest.raises(AssertionError):
        agree(cut, wanted)


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives_are_those_of_the_reference(name: str, backend: str):
    run = CALLS[name][0]
    agree(penalty(run, backend, inputs(name)), penalty(run, "reference", inputs(name, torch.float64)))


def test_without_a_graph_the_backward_pass_is_the_kernels_own(monkeypatch: pytest.MonkeyPatch):
    x = [x.requires_grad_() for x in inputs("itself")]
    loss = itself("auto", *x)
    monkeypatch.delitem(INSTALLED, "reference")
    loss.backward()
    assert x[0].grad is not None


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", CALLS)
def test_functional_gradients_are_those_of_autograd(name: str, backend: str):
    run, tensors = CALLS[name][0], inputs(name)
    places = tuple(range(len(tensors)))
    found = torch.func.grad(lambda *x: run(backend, *x), places)(*tensors)
    agree(found, penalty(run, "reference", inputs(name, torch.float64))[: len(tensors)])


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", CALLS)
def test_a_mapped_call_is_one_call_for_each(name: str, backend: str):
    run, tensors = CALLS[name][0], inputs(name)
    several = [torch.stack([x, 0.5 * x, -x]) for x in tensors]
    found = torch.vmap(lambda *x: run(backend, *x))(*several)
    agree(found, torch.stack([run("reference", *(x[i].double() for x in several)) for i in range(3)]))
    places = tuple(range(len(tensors)))
    per_sample = torch.vmap(torch.func.grad(lambda *x: run(backend, *x), places))(*several)
    for i in range(3):
        wanted = penalty(run, "reference", [x[i].double() for x in several])[: len(tensors)]
        agree([x[i] for x in per_sample], wanted)


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_a_batch_are_those_of_its_members(name: str, backend: str):
    run, tensors = CALLS[name][0], [x.requires_grad_() for x in inputs(name)]
    result, seeds = run(backend, *tensors), torch.tensor([1.0, -0.5, 0.0])
    found = torch.autograd.grad(result, tensors, seeds, is_grads_batched=True)
    first = penalty(run, "reference", inputs(name, torch.float64))[: len(tensors)]
    agree(found, [torch.stack([factor * x for factor in seeds.double()]) for x in first])


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", CALLS)
def test_directional_derivatives_are_products_with_the_gradient(name: str, backend: str):
    run, tensors = CALLS[name][0], inputs(name)
    first = penalty(run, "reference", inputs(name, torch.float64))[: len(tensors)]
    directions = tuple(x.cos() for x in tensors)
    wanted = sum((x * y).sum() for x, y in zip(first, directions, strict=True))
    found = torch.func.jvp(lambda *x: run(backend, *x), tuple(tensors), directions)
    agree(found, (run("reference", *inputs(name, torch.float64)), wanted))
    with forward_ad.dual_level():
        dual = run(backend, *(forward_ad.make_dual(x, y) for x, y in zip(tensors, directions, strict=True)))
        agree(forward_ad.unpack_dual(dual).tangent, wanted)


Jacobian = Callable[[Run, Tensor], Tensor]
JACOBIANS: dict[str, Jacobian] = {
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),  # type: ignore[return-value]
    "vectorized": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),  # type: ignore[return-value]
    "forward": lambda f, x: torch.autograd.functional.jacobian(  # type: ignore[return-value]
        f, x, vectorize=True, strategy="forward-mode"
    ),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y).sin().sum())(x),  # type: ignore[return-value]
}


@pytest.mark.skipif("cpu" not in INSTALLED, reason="the kernels are not installed")
@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_say_that_they_have_no_forward_mode(name: str):
    tensors = tuple(inputs(name))
    with pytest.raises(ValueError, match="backend 'cpu' does not cover this call: it has no forward-mode derivative"):
        torch.func.jvp(lambda *x: CALLS[name][0]("cpu", *x), tensors, tensors)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("which", JACOBIANS)
def test_every_jacobian_is_that_of_the_reference(which: str, backend: str):
    def operator(backend: str, x: Tensor) -> Tensor:
        return rb.linear_attention(x, x.sin(), x, write=rb.Delta(0.5), backend=backend).out

    def convolved(backend: str, x: Tensor) -> Tensor:
        return short_convolution(x, x[0, :3, :2].T.cos(), activation="silu", backend=backend)[0]

    for run, x in ((operator, torch.randn(1, 3, 2, 2)), (convolved, torch.randn(1, 4, 2))):
        found = JACOBIANS[which](lambda y, run=run: run(backend, y), x)
        wanted = JACOBIANS["hessian" if which == "hessian" else "jacobian"](
            lambda y, run=run: run("reference", y), x.double()
        )
        agree(found, wanted)


@final
class Called(torch.nn.Module):
    """A layer's call of both operators, with weights that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.3 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        x, _ = short_convolution(x, self.weight, cu_seqlens=cu_seqlens, activation="silu")
        q = x.unflatten(-1, (2, 4))
        gate = torch.nn.functional.logsigmoid(q[..., 0])
        return rb.linear_attention(q, q, q, log_decay=gate, write=rb.Delta(0.5), cu_seqlens=cu_seqlens).out


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_exported_with_gradients_runs_at_any_length(strict: bool):
    torch.compiler.reset()
    module, time = Called(), {1: torch.export.Dim("T", min=2, max=4096)}
    exported = torch.export.export(module, (torch.randn(1, 40, 8),), dynamic_shapes=(time,), strict=strict)
    for T in (2, 128, 129, 300):
        x = torch.randn(1, T, 8)
        assert error(exported.module()(x), module(x)) < LIMIT


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_training_is_training_at_any_length(packed: bool):
    torch.compiler.reset()
    eager, module = Called(), Called()
    compiled = torch.compile(module, dynamic=True, backend="aot_eager")
    for T in (40, 9, 300):
        x, cu_seqlens = torch.randn(1, T, 8), torch.tensor([0, T // 3, T // 3, T]) if packed else None
        number(eager(x, cu_seqlens)).backward()
        number(compiled(x, cu_seqlens)).backward()
        agree(module.weight.grad, eager.weight.grad)
