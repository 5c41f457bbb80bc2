"""What the cases of attention share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.base.tensors import map_tensors
from rebracket.bench.case import TITLES, Case, Heading, Prepared, Results, Work, prepare_torch
from rebracket.ops.state import State


@final
@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The tensors of a case of attention, with the time axis in every mode.

    Args:
        q: [B,T,H,D], k and v too; positive where the rule normalizes, of length 1 where it erases.
        log_decay: None, [B,T,H] or [B,T,H,D].
        beta: None or [B,T,H].
        weight: [B,T,H,D].
        state: to decode from; None in the other modes.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    weight: Tensor
    state: State | None = None


class AttentionCase(Case, ABC):
    """A case with queries, keys and values [B,T,H,D].

    Every head has the same inputs, its values times a factor of its own. All rules are linear in the values, so the
    exact result of one head is that of all, factor aside, and a head that is computed from another's inputs shows.
    """

    letters = "BTHD"
    shapes: ClassVar = {
        "full": (
            (1, 1024, 8, 64), (1, 4096, 8, 64), (1, 16384, 8, 64), (4, 2048, 16, 64), (1, 4096, 4, 128),
            (1, 65536, 4, 64), (1, 1, 16, 128), (16, 1, 16, 128),
        ),
        "quick": ((1, 256, 2, 64), (2, 512, 2, 64), (1, 1, 2, 64)),
    }  # fmt: skip
    best: ClassVar[str] = "auto"
    """What of this package is compared with softmax over many T."""

    @property
    def heading(self) -> Heading:
        return Heading(TITLES[self.mode], "rule", self.title)

    def count(self, operations: int, numbers: int, state: int) -> Work:
        """The work of a forward pass given for each token and head, its inputs and outputs and its state in numbers.

        The backward pass has two gradients for every product, and moves inputs and outputs twice more.
        """
        B, T, H, D = self.shape
        tokens, state_nbytes = B * T * H * (3 if self.mode == "train" else 1), 4 * state * B * H
        moved = numbers * tokens * self.dtype.itemsize + (2 * state_nbytes if self.mode == "decode" else 0)
        return Work(operations * tokens, moved, state_nbytes, B * H * D**2)

    @property
    def factors(self) -> Tensor:
        """The factor [B,H] of every head's values: from 1 to under 2, in steps that float32 holds exactly."""
        B, _, H, _ = self.shape
        return 1 + torch.arange(B * H).view(B, H) / (1 << (B * H - 1).bit_length())

    def draw_tokens(self, generator: torch.Generator) -> AttentionInputs:
        """Normal q, k, v and weight of one head; values of 8 bits, so that their products with a factor are exact."""
        _, T, _, D = self.shape
        q, k, v, weight = (torch.randn(1, T, 1, D, generator=generator) for _ in range(4))
        return AttentionInputs(q, k, v.bfloat16().float(), None, None, weight)

    def inputs(self) -> AttentionInputs:
        one, (B, _, H, _), factors = self.draw(), self.shape, self.factors

        def expand(name: str, x: Tensor) -> Tensor:
            if name == "state.memory":
                return x * factors[..., None, None]
            sizes = (B, H, *x.shape[2:]) if name.startswith("state.") else (B, -1, H, *x.shape[3:])
            return x.expand(sizes).contiguous()

        every = map_tensors(one, expand)
        return replace(every, v=every.v * factors[:, None, :, None].to(self.dtype))

    def expand(self, name: str, exact: Tensor) -> Tensor:
        # A value that is twice as large has an output and gradients twice as large; its own gradient does not know it.
        factors = self.factors.double()
        factors = torch.ones_like(factors) if name in ("grad v", "state.key_sum") else factors
        leading = factors if name.startswith("state.") else factors[:, None]
        return exact * leading.reshape(*leading.shape, *[1] * (exact.ndim - leading.ndim))


def prepare_sequence(case: AttentionCase, x: AttentionInputs, attend: Callable[[AttentionInputs], Tensor]) -> Prepared:
    """Prepares a case over a sequence for a function from its inputs to out [B,T,H,D]."""
    return prepare_torch(case.mode, x, attend, lambda out: {"out": out})


def prepare_token(step: Callable[[], tuple[Tensor, State]]) -> Prepared:
    """Prepares a decode case for a function to out, [B,H,D] or [B,1,H,D], and the state after it."""
    return Prepared(torch.no_grad()(step), decoded)


def decoded(made: tuple[Tensor, State]) -> Results:
    out, state = made
    return {"out": out if out.ndim == 4 else out.unsqueeze(1)} | {f"state.{n}": x for n, x in state.tensors().items()}
