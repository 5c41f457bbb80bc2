"""Laws of use with torch: any gradient, twice if asked, checkpointing, autocast, inference mode, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.utils.checkpoint import checkpoint

from rebracket.ops.state import Output, State
from rebracket.testing.budgets import check_all, check_equal
from rebracket.testing.memory import peak_nbytes
from rebracket.testing.results import Run, loss, results, values
from rebracket.testing.rows import Law, Operator, Row, cases, few, in_every_mode
from rebracket.testing.samples import SHAPES, Case, Sample, Shape, draw, sample, write_names


def gradients_are_derivatives(op: Operator, row: Row) -> None:
    """gradcheck: the gradient of every output and state entry by every input is what finite differences say."""
    differentiate(gradcheck, op, row)


def gradients_have_gradients(op: Operator, row: Row) -> None:
    """gradgradcheck: the same of the gradients themselves."""
    differentiate(gradgradcheck, op, row)


def differentiate(checker: Callable[..., bool], op: Operator, row: Row) -> None:
    s = draw(row.case)

    def run(flat: Tensor) -> Tensor:
        return joined(values(op.attend(parted(s, flat), row)))

    try:
        checker(run, joined(s.tensors()).requires_grad_(), fast_mode=True)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def joined(named: dict[str, Tensor]) -> Tensor:
    """All numbers in one vector: finite differences are then taken once, along a random direction of all inputs."""
    return torch.cat([x.reshape(-1) for x in named.values()])


def parted(s: Sample, flat: Tensor) -> Sample:
    """A sample with the numbers of a vector."""
    named = s.tensors()
    parts = flat.split([x.numel() for x in named.values()])
    given = {name: part.view(x.shape) for (name, x), part in zip(named.items(), parts, strict=True)}
    return s.map(lambda name, _: given[name])


def smooth() -> Iterator[Row]:
    """Every rule, decay and shape in a small size; erasing decays have no finite differences."""
    found = [replace(case, shape="small") for case in cases(shapes=("plain",)) if "flush" not in case.decay]
    packed = [Case(write, "channel", "small_packed") for write in write_names()]
    return in_every_mode([*found, *packed], 3)


def smooth_once() -> Iterator[Row]:
    """Every rule and every smooth decay once in each mode."""
    found = [case for shape in ("small", "small_packed") for case in few(shape=shape) if "flush" not in case.decay]
    return in_every_mode(found, 3)


def any_gradient_alone(op: Operator, row: Row) -> None:
    """The gradient of one input alone, or of the outputs or the state alone, is what it is among all."""
    s = draw(row.case)
    wanted = results(lambda x: op.attend(x, row), s)
    for name in s.tensors():
        alone = results(lambda x: op.attend(x, row), s, frozenset([name]))
        check_all(alone, {key: wanted[key] for key in alone}, row.dtype, f"only {name}:")
    parts = [results(lambda x, part=part: part(op.attend(x, row)), s) for part in (outputs_only, state_only)]
    for name in s.tensors():
        key = f"grad {name}"
        check_all({key: parts[0][key] + parts[1][key]}, {key: wanted[key]}, row.dtype, "in two parts:")


def outputs_only(found: Output) -> Output:
    return Output(found.out, State(*(x.detach() for x in found.state.tensors().values())))


def state_only(found: Output) -> Output:
    return Output(found.out.detach(), found.state)


def subsets() -> Iterator[Row]:
    return in_every_mode([*few(shape="small"), *few(shape="small_packed")], 3)


def checkpointing_changes_nothing(op: Operator, row: Row) -> None:
    """Under torch.utils.checkpoint, reentrant or not, the same results."""
    s = draw(row.case)
    wanted = results(lambda x: op.attend(x, row), s)
    for reentrant in (False, True):
        found = results(lambda x, reentrant=reentrant: checkpointed(op, x, row, reentrant), s)
        check_all(found, wanted, row.dtype, f"use_reentrant={reentrant}:")


def checkpointed(op: Operator, s: Sample, row: Row, reentrant: bool) -> Output:
    def run(flat: Tensor) -> tuple[Tensor, ...]:
        out, state = op.attend(parted(s, flat), row)
        return out, *state.tensors().values()

    out, *held = checkpoint(run, joined(s.tensors()), use_reentrant=reentrant)
    return Output(out, State(*held))


def checkpointable() -> Iterator[Row]:
    return in_every_mode([*few(shape="small"), *few(shape="packed")])


def autocast_stays_out(op: Operator, row: Row) -> None:
    """Under autocast to bfloat16 the same bits, causal or not, and steps as well."""
    for s in forms(draw(row.case)):
        same_under_autocast(lambda x: op.attend(x, row), s)
    one = draw(row.case).tokens(0, 1)
    if one.cu_seqlens is None:
        same_under_autocast(lambda x: op.step(x, row, False), one)


def same_under_autocast(run: Run, s: Sample) -> None:
    """The same outputs, state and gradients; the backward pass is taken outside autocast, as torch asks for."""

    def cast(x: Sample) -> Output:
        with torch.autocast("cpu", torch.bfloat16):
            return run(x)

    wanted = results(run, s)
    for name, x in results(cast, s).items():
        check_equal(name, x, wanted[name])


def forms(s: Sample) -> list[Sample]:
    """The sample, and without its order of time where that has a meaning."""
    free = not s.write.reads_back and s.bonus is None
    return [s, replace(s, causal=False, state=None)] if free else [s]


def casts() -> Iterator[Row]:
    free = [Case("additive", "none", shape, torch.float32) for shape in ("plain", "packed")]
    return in_every_mode([*few(torch.float32), *free, *few(torch.float32, "packed")])


def inference_mode_changes_nothing(op: Operator, row: Row) -> None:
    """Under inference_mode and no_grad the same bits, from a state made there as well."""
    s = draw(row.case)
    wanted = twice(op, s, row)
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            found = twice(op, s, row)
        for name, x in wanted.items():
            check_equal(name, found[name], x)


def twice(op: Operator, s: Sample, row: Row) -> dict[str, Tensor]:
    """Outputs and state, and those of going on from that state."""
    first = op.attend(s, row)
    second = op.attend(replace(s, state=first.state), row)
    return values(first) | {f"again {name}": x for name, x in values(second).items()}


def inferred() -> Iterator[Row]:
    return in_every_mode(case for shape in SHAPES for case in few(torch.float32, shape))


def memory_grows_with_the_tokens(op: Operator, row: Row) -> None:
    """Peak bytes of forward and backward grow as T, and as K and V, never as T K V, T T or T C K."""
    token = growth(op, row, 128, 32)
    ratios = {"T": (growth(op, row, 256, 32) / token, 1.05), "K and V": (growth(op, row, 128, 64) / token, 2.1)}
    if row.chunk is not None:
        ratios["C"] = (token / growth(op, replace(row, chunk=32), 128, 32), 1.25)
    for what, (ratio, limit) in ratios.items():
        if not ratio <= limit:
            raise AssertionError(f"{what} doubled: bytes per token grew by {ratio:.2f} > {limit}")


def memory_both_ways_grows_with_the_tokens(op: Operator, row: Row) -> None:
    """The same of a call without an order of time, which nobody told a mode."""
    unordered = Operator(lambda s, row: op.attend(replace(s, causal=False, state=None), row), op.step)
    memory_grows_with_the_tokens(unordered, row)


def unordered() -> Iterator[Row]:
    return (Row(Case("additive", decay, dtype=torch.float32), "auto", None) for decay in ("none", "token", "channel"))


def parallel_mode_holds_no_weight_per_channel(op: Operator, row: Row) -> None:
    """[T,T] is what the parallel mode is made of; [T,T,K] would be K times as much."""
    T, K = 256, 64
    found, whole = peak(op, row, Shape(1, T, 1, 1, K, K + 1)), 4 * T * T * K
    if not found < whole:
        raise AssertionError(f"{found:,} bytes at T = {T}, K = {K}: as much as [T,T,K], {whole:,} bytes")


def squared() -> Iterator[Row]:
    return (Row(Case(write, "channel", dtype=torch.float32), "parallel", None) for write in ("additive", "delta"))


def growth(op: Operator, row: Row, T: int, K: int) -> float:
    """Bytes that each token from T to 2 T costs."""
    V = K + K // 4
    return (peak(op, row, Shape(1, 2 * T, 1, 1, K, V)) - peak(op, row, Shape(1, T, 1, 1, K, V))) / T


def peak(op: Operator, row: Row, shape: Shape) -> int:
    """Peak bytes of outputs, state and all gradients."""
    s = sample(row.case, shape).leaves()
    return peak_nbytes(lambda: loss(values(op.attend(s, row))).backward())


def long() -> Iterator[Row]:
    for write in ("additive", "delta"):
        for decay in ("none", "token", "channel"):
            yield Row(Case(write, decay, dtype=torch.float32), "chunk", 64)
    yield Row(Case("additive", "channel", dtype=torch.float32), "recurrent", None)
    yield Row(Case("delta", "channel", dtype=torch.float32), "recurrent", None)


LAWS = (
    Law(gradients_are_derivatives, smooth, adapts=False),
    Law(gradients_have_gradients, smooth_once, adapts=False),
    Law(any_gradient_alone, subsets),
    Law(checkpointing_changes_nothing, checkpointable),
    Law(autocast_stays_out, casts),
    Law(inference_mode_changes_nothing, inferred),
    Law(memory_grows_with_the_tokens, long),
    Law(memory_both_ways_grows_with_the_tokens, unordered),
    Law(parallel_mode_holds_no_weight_per_channel, squared),
)
