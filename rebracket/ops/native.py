"""Operators that torch cannot look into: kernels, or loops that a trace must not unroll.

An operator is written as a forward pass, a backward pass and the shapes of its results. From the fields of its call
type follows all else that torch asks for: the operator's schema, autograd in eager mode and under torch.compile and
torch.export, and vmap. A plain eager call goes straight to the forward pass; anything else goes through the registered
operator, where torch gives it its meaning.
"""

from __future__ import annotations

import dataclasses
import typing
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from rebracket.ops.backend import INSTALLED, Implementation, Kind

Results = tuple[Tensor, ...]
Operator = TypeVar("Operator", bound="NativeOperator[Any]")
# What a schema calls the types of a call's fields.
SCHEMA = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    int: "SymInt",
    int | None: "SymInt?",
    float: "float",
    bool: "bool",
    str | None: "str?",
}


class NativeOperator(Implementation[Kind]):
    """A type of call with a forward and a backward pass of its own."""

    name: ClassVar[str]
    """What torch knows it by: rebracket::NAME."""
    results: ClassVar[int]
    """Tensors that the forward pass gives; at least two, or one and something kept."""
    kept: ClassVar[int] = 0
    """Further tensors that it keeps for the backward pass."""
    registered: ClassVar[Any]
    """The operator as torch has it, which `register` fills in."""

    @abstractmethod
    def forward(self, call: Kind, keep: bool) -> Results:
        """The results, and behind them what the backward pass needs; that may be empty unless `keep`."""

    @abstractmethod
    def outline(self, call: Kind, keep: bool) -> Results:
        """Tensors of the shapes and dtypes of what `forward` gives, for tensors without numbers."""

    @abstractmethod
    def backward(self, call: Kind, kept: Results, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the call's tensors by name, of those that have one; `grads` are those of the results."""

    @abstractmethod
    def flat(self, found: Any) -> Results:
        """What `run` gives as a tuple, in the order of the results of `forward`."""

    def compute(self, call: Kind) -> Results:
        """The results of a call: straight if it is plain, under autograd if wanted, else through torch."""
        named = call.tensors()
        tensors = named.values()
        transformed = transforms() and not traced()
        if not transformed and not plain(tensors):
            return self.dispatched(call, named)[: self.results]
        if transformed or learns(tensors):
            return Eager.apply(self, without(call, named), tuple(named), *tensors)[: self.results]
        check_memory(named)
        return self.forward(call, keep=False)[: self.results]

    def dispatched(self, call: Kind, named: Mapping[str, Tensor]) -> Results:
        """The results by the registered operator, to which each kind of tensor gives its meaning or none."""
        try:
            return self.registered(*vars(call).values(), learns(named.values()))
        except FOREIGN as error:
            refuse_foreign(named, error)
            raise


FOREIGN = (NotImplementedError, RuntimeError, TypeError, AssertionError)
"""What torch raises where an operator is not defined for a kind of tensor."""


def refuse_foreign(named: Mapping[str, Tensor], error: Exception) -> None:
    """Raises an error that names the tensors of other kinds, if there are any, for one that torch raised."""
    foreign = {shown(name): type(x).__name__ for name, x in named.items() if type(x) not in PLAIN}
    if foreign and not torch.compiler.is_compiling():
        seen = ", ".join(f"{name} ({kind})" for name, kind in foreign.items())
        raise TypeError(
            f"{seen} must be plain tensors: this call is not defined for these kinds; pass the tensors that they hold, "
            f"or all arguments in one kind that torch's operators have ({error})"
        ) from error


def without(call: Any, names: Iterable[str]) -> Any:
    """A call in which None stands for its tensors."""
    return dataclasses.replace(call, **dict.fromkeys(names))


@final
class Eager(torch.autograd.Function):
    """A plain call under autograd and under the transforms of torch.func."""

    @staticmethod
    def forward(operator: NativeOperator[Any], bare: Any, names: tuple[str, ...], *tensors: Tensor) -> Results:
        """The results and what is kept, for a call in which tensors stand under their names."""
        named = dict(zip(names, tensors, strict=True))
        check_memory(named)
        return operator.forward(dataclasses.replace(bare, **named), keep=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        """Saves what the backward pass needs, as torch wants it."""
        ctx.operator, ctx.bare, ctx.names, *tensors = inputs
        kept = output[ctx.operator.results :]
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*kept, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients, in the order of the tensors."""
        saved, kept, grads = ctx.saved_tensors, ctx.operator.kept, grads[: ctx.operator.results]
        call = dataclasses.replace(ctx.bare, **dict(zip(ctx.names, saved[kept:], strict=True)))
        if torch.is_grad_enabled() or not plain([*saved, *(x for x in grads if x is not None)]):
            found = differentiable_backward(ctx.operator, call, grads)
        else:
            check_memory(call.tensors())
            found = ctx.operator.backward(call, saved[:kept], grads)
        return None, None, None, *(found.get(name) for name in ctx.names)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> tuple[Results, tuple[int, ...]]:
        """Each member of the batch by a call of its own."""
        members = []
        for i in range(info.batch_size):
            one = [x.select(dim, i) if isinstance(dim, int) else x for x, dim in zip(values, in_dims, strict=True)]
            members.append(Eager.apply(*one))
        stacked = tuple(torch.stack(parts) for parts in zip(*members, strict=True))
        return stacked, (0,) * len(stacked)


def differentiable_backward(
    operator: NativeOperator[Any], call: Any, grads: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """The gradients of a call as functions that can be differentiated again, by the reference's operations."""
    run = INSTALLED["reference"].run
    if transforms():  # under which saved tensors do not say whether their gradient is asked for
        named = floating(call)
        results, pull_back, *_ = torch.func.vjp(lambda x: operator.flat(run(dataclasses.replace(call, **x))), named)
        given = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(results, grads, strict=True)]
        return pull_back(tuple(given))[0]
    with torch.enable_grad():
        # Views, because one tensor may be several arguments, and each has a gradient of its own.
        call = call.map(lambda x: x.view_as(x) if x.requires_grad else x)
        results = operator.flat(run(call))
        named = {name: x for name, x in floating(call).items() if x.requires_grad}
        ends = [(x, grad) for x, grad in zip(results, grads, strict=False) if grad is not None and x.requires_grad]
        found = torch.autograd.grad(
            [x for x, _ in ends],
            list(named.values()),
            [grad for _, grad in ends],
            create_graph=True,
            allow_unused=True,
        )
    return {name: x for name, x in zip(named, found, strict=True) if x is not None}


PLAIN = {Tensor, torch.nn.Parameter}


def plain(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors are numbers in this process's memory, and nothing traces, records or transforms what is done."""
    if traced() or transforms():
        return False
    for x in tensors:
        if type(x) not in PLAIN or x.layout is not torch.strided or x.is_nested or x.is_meta or x.is_neg():
            return False
        if not torch._C._has_storage(x) or (not x.data_ptr() and x._is_zerotensor()):
            return False
    return True


def check_memory(tensors: Mapping[str, Tensor]) -> None:
    """Raises for a tensor whose memory was freed, which has none to be read."""
    for name, x in tensors.items():
        if not x.data_ptr() and x.numel():
            raise ValueError(
                f"{shown(name)} has no memory: its storage was freed or resized; restore it before this call"
            )


def check_readable(tensors: Mapping[str, Tensor]) -> None:
    """The same, of tensors of which some may never have had memory of their own."""
    if plain(tensors.values()):
        check_memory(tensors)


def shown(name: str) -> str:
    """What the caller knows a tensor of a call by."""
    return f"state.{name}" if name in ("memory", "key_sum") else name


def learns(tensors: Iterable[Tensor]) -> bool:
    """Whether a gradient may be asked for."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def transforms() -> bool:
    """Whether a transform of torch.func, or a batch of gradients, is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore[attr-defined]


def traced() -> bool:
    """Whether something traces or records what is done, or there are tangents."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def register(operator: Operator) -> Operator:
    """Tells torch of an operator: its schema, forward and backward pass, shapes and gradients."""
    hints = typing.get_type_hints(operator.call)
    names = [field.name for field in dataclasses.fields(operator.call)]
    fields = ", ".join(f"{SCHEMA.get(hints[name], 'str?')} {name}" for name in names)
    outputs = ", ".join(["Tensor"] * (operator.results + operator.kept))
    forward, backward = f"rebracket::{operator.name}", f"rebracket::{operator.name}_backward"
    torch.library.define(forward, f"({fields}, bool keep) -> ({outputs})")
    torch.library.define(backward, f"(Tensor[] kept, Tensor?[] grads, {fields}) -> Tensor[]")
    type(operator).registered = getattr(torch.ops.rebracket, operator.name).default
    run_backward = getattr(torch.ops.rebracket, f"{operator.name}_backward").default

    def run(*fields: Any) -> Results:
        call = operator.call(*fields[:-1])
        check_memory(call.tensors())
        return operator.forward(call, keep=fields[-1])

    def outline(*fields: Any) -> Results:
        return operator.outline(operator.call(*fields[:-1]), keep=fields[-1])

    def differentiate(kept: list[Tensor], grads: list[Tensor | None], *fields: Any) -> list[Tensor]:
        call = operator.call(*fields)
        check_memory(call.tensors())
        found = operator.backward(call, tuple(kept), grads)
        return [found[name] if name in found else torch.zeros_like(x) for name, x in floating(call).items()]

    def outline_backward(kept: list[Tensor], grads: list[Tensor], *fields: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in floating(operator.call(*fields)).values()]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        ctx.set_materialize_grads(False)
        ctx.given = [isinstance(x, Tensor) for x in inputs[:-1]]
        ctx.others = [None if given else x for x, given in zip(inputs, ctx.given, strict=False)]
        ctx.save_for_backward(*output[operator.results :], *(x for x in inputs if isinstance(x, Tensor)))

    def pull_back(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) for _ in range(operator.kept)]
        fields = [next(saved) if given else x for given, x in zip(ctx.given, ctx.others, strict=True)]
        call = operator.call(*fields)
        if torch.is_grad_enabled():
            named = differentiable_backward(operator, call, grads[: operator.results])
        else:
            found = run_backward(kept, list(grads[: operator.results]), *fields)
            named = dict(zip(floating(call), found, strict=True))
        return *(named.get(name) for name in names), None

    # Else a compiled program that runs an operator would compile what is inside it, too.
    torch.library.impl(forward, "CompositeExplicitAutograd")(_disable_dynamo(run))
    torch.library.impl(backward, "CompositeExplicitAutograd")(_disable_dynamo(differentiate))
    torch.library.register_fake(forward)(outline)
    torch.library.register_fake(backward)(outline_backward)
    torch.library.register_autograd(forward, pull_back, setup_context=save)
    return operator


def floating(call: Any) -> dict[str, Tensor]:
    """The tensors of a call that may have a gradient, by name."""
    return {name: x for name, x in call.tensors().items() if x.is_floating_point()}
