"""Prepared steps: what many steps of one kind have in common is checked and chosen once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from rebracket.ops.backend import Backend, PreparedStep, choose
from rebracket.ops.lowering import lowered_step, make_step, with_time_axis
from rebracket.ops.native import PLAIN, learns, plain, traced, transforms
from rebracket.ops.state import Output, State
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive


@final
class Stepper:
    """`step`, prepared: the first call checks its arguments and chooses the backend, later ones like it only compute.

    Later calls are alike when their tensors have the same shapes, strides, dtypes and devices, and the write rule is of
    the same kind. One that is not is checked and prepared in turn, so a stepper never gives anything but what `step`
    gives. It holds no tensors of a call and may be used by several threads.

    Args:
        normalize: as in `step`.
        scale: as in `step`.
        backend: as in `step`.

    Cost: of a later call on the cpu backend about 10 us and what the kernel takes.

    Source: the split into preparing and computing of solvers such as LAPACK's.

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v, beta = torch.randn(9, 1, 2, 4), torch.randn(9, 1, 2, 4), torch.randn(9, 1, 2, 5), 0.5
        >>> stepper, state = rb.Stepper(), rb.State.zeros(1, 2, 4, 5)
        >>> for t in range(9):
        ...     out, state = stepper(q[t], k[t], v[t], state=state, write=rb.Delta(beta))
        >>> out.shape
        torch.Size([1, 2, 5])
    """

    def __init__(self, *, normalize: bool = False, scale: float | None = None, backend: str = "auto") -> None:
        self.normalize, self.scale, self.backend = normalize, scale, backend
        self.prepared: Prepared | None = None

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: State,
        log_decay: Tensor | None = None,
        write: WriteRule = Additive(),
        bonus: Tensor | None = None,
        inplace: bool = False,
    ) -> Output:
        """One token; arguments, results and errors are those of `step`."""
        prepared = self.prepared
        if prepared is not None and type(write) is prepared.rule and type(state) is State:
            values = (q, k, v, log_decay, bonus, state.memory, state.key_sum, inplace, *vars(write).values())
            if prepared.fits(values) and (output := prepared.run(values, state)) is not None:
                return output
        return self.prepare(q, k, v, state, log_decay, write, bonus, inplace)

    def prepare(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State,
        log_decay: Tensor | None,
        write: WriteRule,
        bonus: Tensor | None,
        inplace: bool,
    ) -> Output:
        """Checks and runs one call, and prepares for others like it."""
        call = make_step(q, k, v, log_decay, write, bonus, self.normalize, self.scale, state, inplace)
        chosen = choose(call, self.backend)
        values = (q, k, v, log_decay, bonus, state.memory, state.key_sum, inplace, *vars(write).values())
        tensors = [x for x in values if isinstance(x, Tensor)]
        if plain(tensors) and not learns(tensors):
            way = chosen.prepare(call, [x if isinstance(x, Tensor) else None for x in values])
            way = way or Unchecked(chosen, type(write), self.normalize, self.scale)
            self.prepared = Prepared(type(write), tuple(map(layout, values)), way)
        out, after = chosen.run(call)
        return Output(out.squeeze(1), state if inplace else after)

    def __reduce__(self) -> tuple[Callable[..., Stepper], tuple[bool, float | None, str]]:
        """A copy, and one read from a file, has prepared nothing."""
        return stepper, (self.normalize, self.scale, self.backend)


def stepper(normalize: bool, scale: float | None, backend: str) -> Stepper:
    return Stepper(normalize=normalize, scale=scale, backend=backend)


Values = tuple[Any, ...]
"""q, k, v, log_decay, bonus, the state's memory and key_sum, inplace, and the fields of the write rule."""


@final
@dataclass(frozen=True)
class Prepared:
    """A kind of call, and the way to compute it."""

    rule: type[WriteRule]
    layouts: tuple[Any, ...]
    run: PreparedStep

    def fits(self, values: Values) -> bool:
        """Whether a call differs from the one that was prepared in nothing but the numbers of its tensors."""
        if traced() or transforms():
            return False
        try:
            return self.alike(values)
        except RuntimeError:  # a nested or sparse tensor has no shape or no strides
            return False

    def alike(self, values: Values) -> bool:
        """Whether values are of the layouts that were prepared."""
        learning = torch.is_grad_enabled()
        for x, wanted in zip(values, self.layouts, strict=True):
            if type(x) in PLAIN:
                if type(wanted) is not tuple:
                    return False
                shape, stride, dtype, is_cpu = wanted
                if x.shape != shape or x.stride() != stride or x.dtype is not dtype or x.is_cpu is not is_cpu:
                    return False
                if x.is_neg() or (learning and x.requires_grad):
                    return False
            elif type(x) is not type(wanted) or x != wanted:  # 1 and True are equal, not the same
                return False
        return True


def layout(x: Any) -> Any:  # noqa: ANN401 - what is no tensor stays what it is
    """What a step depends on besides the numbers of x."""
    return (x.shape, x.stride(), x.dtype, x.is_cpu) if isinstance(x, Tensor) else x


@final
@dataclass(frozen=True, eq=False)
class Unchecked:
    """Steps on a backend that has nothing shorter for them: as `step` computes them, without the checks."""

    backend: Backend
    rule: type[WriteRule]
    normalize: bool
    scale: float | None

    def __call__(self, values: Sequence[Any], state: State) -> Output:
        q, k, v, log_decay, bonus, _, _, inplace, *fields = values
        write = self.rule(*fields)
        arguments = with_time_axis(q, k, v, log_decay, write)
        call = lowered_step(*arguments, bonus, self.normalize, self.scale, state, inplace)
        out, after = self.backend.run(call)
        return Output(out.squeeze(1), state if inplace else after)
