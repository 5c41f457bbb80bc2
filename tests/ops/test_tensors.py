"""Every kind of tensor that torch has gives right numbers or an error that names the argument, and never a crash."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

import rebracket as rb
from rebracket.ops.convolution import short_convolution
from rebracket.testing.budgets import error

B, T, H, K, V, D, W = 2, 10, 3, 4, 5, 6, 4
Tensors = dict[str, Tensor]
Results = tuple[Tensor, ...]


def recurrence(x: Tensors) -> Results:
    write, state = rb.Delta(x["beta"]), rb.State(x["state.memory"])
    out, after = rb.linear_attention(x["q"], x["k"], x["v"], log_decay=x["log_decay"], write=write, state=state)
    return out, after.memory


def a_step(run: Callable[..., rb.Output], x: Tensors) -> Results:
    write, state = rb.Delta(x["beta"]), rb.State(x["state.memory"])
    out, after = run(x["q"], x["k"], x["v"], log_decay=x["log_decay"], write=write, state=state)
    return out, after.memory


def step(x: Tensors) -> Results:
    return a_step(rb.step, x)


STEPPER = rb.Stepper()
"""Prepared for plain tensors before any other kind comes."""


def prepared(x: Tensors) -> Results:
    return a_step(STEPPER, x)


def convolution(x: Tensors) -> Results:
    return short_convolution(x["x"], x["weight"], x["bias"], x["tail"], activation="silu")


def softmax(x: Tensors) -> Results:
    return (rb.softmax_attention(x["q"], x["k"], x["v"]).out,)


ONE = {
    "q": (B, H, K),
    "k": (B, H, K),
    "v": (B, H, V),
    "beta": (B, H),
    "log_decay": (B, H),
    "state.memory": (B, H, K, V),
}
MANY = {name: (B, T, *shape[1:]) for name, shape in ONE.items()} | {"state.memory": (B, H, K, V)}
OPERATORS: dict[Callable[[Tensors], Results], dict[str, tuple[int, ...]]] = {
    recurrence: MANY,
    step: ONE,
    prepared: ONE,
    convolution: {"x": (B, T, D), "weight": (D, W), "bias": (D,), "tail": (B, W - 1, D)},
    softmax: {name: MANY[name] for name in ("q", "k", "v")},
}


def inputs(operator: Callable[[Tensors], Results], seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.rand(shape, generator=generator) for name, shape in OPERATORS[operator].items()}
    return drawn | ({"log_decay": -drawn["log_decay"]} if "log_decay" in drawn else {})


class Named(Tensor):
    """A subclass with nothing of its own."""


@final
class Wrapper(Tensor):
    """A tensor that holds another one and has no memory itself."""

    held: Tensor

    @staticmethod
    def __new__(cls, x: Tensor) -> "Wrapper":
        self = Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)  # type: ignore[attr-defined]
        self.held = x
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Wrapper, lambda x: x.held, (args, kwargs or {}))
        return tree_map_only(Tensor, Wrapper, func(*args, **kwargs))


@final
class Refusing(Tensor):
    """A tensor that has no operator at all."""

    @staticmethod
    def __new__(cls, x: Tensor) -> "Refusing":
        return Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.startswith("rebracket::"):
            return NotImplemented
        return tree_map_only(Tensor, Refusing, func(*tree_map_only(Refusing, lambda x: torch.zeros(x.shape), args)))


def negated(x: Tensor) -> Tensor:
    y = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert y.is_neg()
    return y


def distributed(x: Tensor) -> Tensor:
    import tempfile

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    if not torch.distributed.is_initialized():
        place = f"file://{tempfile.mkdtemp()}/store"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    return distribute_tensor(x, init_device_mesh("cpu", (1,)), [Replicate()])


def two(x: Tensor) -> Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(x, x.clone())


def fake(x: Tensor) -> Tensor:
    return FakeTensorMode().from_tensor(x)


def freed(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(0)
    return x


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "parameter": lambda x: torch.nn.Parameter(x),
    "buffer": lambda x: torch.nn.Buffer(x),
    "subclass": lambda x: x.as_subclass(Named),
    "wrapper": Wrapper,
    "refusing wrapper": Refusing,
    "two tensors": two,
    "distributed": distributed,
    "masked": lambda x: torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool)),
    "fake": fake,
    "meta": lambda x: x.to("meta"),
    "lazily negated": negated,
    "real part of a conjugate": lambda x: torch.complex(x, x).conj().real,
    "lazily zero": lambda x: torch._efficientzerotensor(x.shape),  # type: ignore[attr-defined]
    "freed": freed,
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.flatten(1).to_sparse_csr() if x.ndim > 1 else x.to_sparse(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "nested, padded": lambda x: torch.nested.nested_tensor(list(x)),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "complex": lambda x: x.to(torch.complex64),
    "whole numbers": lambda x: x.to(torch.int64),
}
PLAIN_OF: dict[str, Callable[[Tensor], Tensor]] = {
    "lazily zero": torch.zeros_like,
    "expanded": lambda x: x[..., :1].expand(x.shape).clone(),
}


def plain(x: Tensor) -> Tensor:
    """The numbers of a result."""
    if isinstance(x, Wrapper):
        return x.held
    found = getattr(x, "a", x)
    return getattr(found, "full_tensor", lambda: found)().detach().as_subclass(Tensor)


def verdict(operator: Callable[[Tensors], Results], kind: str, changed: list[str]) -> str:
    """ "right", or what is wrong."""
    given, like = inputs(operator), inputs(operator)
    prepared(inputs(prepared))
    given |= {name: KINDS[kind](given[name]) for name in changed}
    like |= {name: PLAIN_OF.get(kind, lambda x: x)(like[name]) for name in changed}
    try:
        found = operator(given)
    except (ValueError, TypeError) as refusal:
        names = given if kind == "meta" else changed  # of two devices either may be the wrong one
        named = any(str(refusal).startswith(name) for name in names)
        return "right" if named else f"{type(refusal).__name__}: {refusal}"
    for x, wanted in zip(found, operator(like), strict=True):
        if x.shape != wanted.shape:
            return f"{list(x.shape)}, not {list(wanted.shape)}"
        if not (x.is_meta or kind == "fake") and not error(plain(x), wanted) < 1e-5:
            return f"wrong by {error(plain(x), wanted)}"
    return "right"


def walk() -> Iterator[tuple[str, str, str, str]]:
    """Every kind as every argument of every operator, alone and as all of them."""
    for kind in KINDS:
        for operator, shapes in OPERATORS.items():
            for changed in [*([name] for name in shapes), list(shapes)]:
                case = (kind, operator.__name__, " ".join(changed))
                sys.stderr.write(f"{case}\n")
                try:
                    yield *case, verdict(operator, kind, changed)
                except Exception as other:
                    yield *case, f"{type(other).__name__}: {other}"


@pytest.fixture(scope="module")
def walked() -> tuple[int, str, list[list[str]]]:
    """The walk in a process of its own, which a kernel may kill."""
    code = f"import json, {__name__} as this\nfor row in this.walk(): print(json.dumps(row), flush=True)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    return done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_walk_comes_to_its_end(walked: tuple[int, str, list[list[str]]]):
    code, said, rows = walked
    assert code == 0, said[-2000:]
    assert {row[0] for row in rows} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_right_or_the_argument_is_named(kind: str, walked: tuple[int, str, list[list[str]]]):
    assert [row for row in walked[2] if row[0] == kind and row[3] != "right"] == []


def changed_gradient(change: Callable[[Tensor], Tensor], like: Callable[[Tensor], Tensor]) -> None:
    """The gradients of every operator for a gradient of a kind, against those for its plain numbers."""
    for operator in (recurrence, step, convolution, softmax):
        found, wanted = ([x.requires_grad_() for x in inputs(operator).values()] for _ in range(2))
        for leaves, form in ((found, change), (wanted, like)):
            results = operator(dict(zip(OPERATORS[operator], leaves, strict=True)))
            torch.autograd.backward(results, [form(x.detach().cos()) for x in results])
        for x, y in zip(found, wanted, strict=True):
            assert x.grad is not None
            assert y.grad is not None
            assert error(x.grad, y.grad) < 1e-5 or (x.grad - y.grad).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["lazily negated", "lazily zero", "expanded", "transposed", "subclass"])
def test_a_gradient_may_be_of_any_kind(kind: str):
    changed_gradient(KINDS[kind], PLAIN_OF.get(kind, lambda x: x))


@pytest.mark.parametrize("operator", [recurrence, step, convolution])
def test_memory_that_is_freed_before_the_backward_pass_is_named(operator: Callable[[Tensors], Results]):
    for name in OPERATORS[operator]:
        given = {key: x.requires_grad_() for key, x in inputs(operator).items()}
        results = operator(given)
        size = given[name].untyped_storage().nbytes()
        given[name].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=f"{name} has no memory"):
            torch.autograd.backward(results, [torch.ones_like(x) for x in results])
        given[name].untyped_storage().resize_(size)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_trace_is_a_function_of_its_arguments(operator: Callable[[Tensors], Results]):
    names = tuple(OPERATORS[operator])
    prepared(inputs(prepared))

    def run(*values: Tensor) -> Results:
        return operator(dict(zip(names, values, strict=True)))

    first, second = inputs(operator), inputs(operator, seed=1)
    wanted = operator(second)
    traces: dict[str, Any] = {mode: make_fx(run, tracing_mode=mode)(*first.values()) for mode in ("real", "fake")}
    traces["jit"] = torch.jit.trace(run, tuple(first.values()), check_trace=False)
    for mode, traced in traces.items():
        for x, y in zip(traced(*second.values()), wanted, strict=True):
            assert error(x, y) < 1e-5, mode


@pytest.mark.parametrize("operator", OPERATORS)
def test_without_numbers_there_are_shapes(operator: Callable[[Tensors], Results]):
    prepared(inputs(prepared))
    wanted = operator(inputs(operator))
    with FakeTensorMode():
        found = operator({name: torch.rand(shape) for name, shape in OPERATORS[operator].items()})
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in wanted]
