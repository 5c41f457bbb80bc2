"""What is raced: rules, shapes, modes, and the inputs of each case."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import elu, logsigmoid, normalize

from rebracket.ops.state import State
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta

Mode = Literal["forward", "train", "decode"]
MODES: tuple[Mode, ...] = ("forward", "train", "decode")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@final
@dataclass(frozen=True)
class Rule:
    """A kind of attention: what decays, and what else the recurrence does."""

    name: str
    title: str
    decay: Literal["none", "token", "channel"] = "none"
    erases: bool = False
    normalizes: bool = False


LINEAR_RULES = (
    Rule("linear", "linear with normalizer", normalizes=True),
    Rule("simple_gla", "simple GLA", "token"),
    Rule("gla", "GLA", "channel"),
    Rule("delta", "delta", erases=True),
    Rule("gated_delta", "gated delta", "token", erases=True),
    Rule("kda", "KDA", "channel", erases=True),
)
SOFTMAX = Rule("softmax", "softmax")
RULES = {rule.name: rule for rule in (*LINEAR_RULES, SOFTMAX)}


@final
@dataclass(frozen=True)
class Shape:
    """B sequences of T tokens, H heads, keys and values of D channels."""

    B: int
    T: int
    H: int
    D: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The shape that "BxTxHxD" names.

        Example:
            >>> Shape.parse("1x4096x8x64")
            Shape(B=1, T=4096, H=8, D=64)
        """
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", text):
            raise ValueError(f"a shape is BxTxHxD, such as 1x4096x8x64, got {text!r}")
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return f"{self.B}x{self.T}x{self.H}x{self.D}"

    @property
    def heads(self) -> int:
        """Independent recurrences: every head of every sequence."""
        return self.B * self.H


SHAPES = tuple(
    map(Shape.parse, ("1x1024x8x64", "1x4096x8x64", "1x16384x8x64", "4x2048x16x64", "1x4096x4x128", "1x65536x4x64"))
)
DECODE_SHAPES = (Shape(1, 1, 16, 128), Shape(16, 1, 16, 128))
QUICK_SHAPES = (Shape(1, 256, 2, 64), Shape(2, 512, 2, 64))
QUICK_DECODE_SHAPES = (Shape(1, 1, 2, 64),)


@final
@dataclass(frozen=True)
class Case:
    """One call to be raced; a decode case is one token from a given state."""

    rule: Rule
    shape: Shape
    mode: Mode
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.rule.title} {self.mode} {self.shape}"

    @property
    def operations(self) -> int:
        """The least there are, a multiply-add being 2: 4 D^2 a token and head, 6 D^2 when it erases.

        Three times as many with the backward pass, whose every product has two gradients. Softmax: the half of the
        T x T scores that the past is.
        """
        shape = self.shape
        each = 2 * (shape.T + 1) * shape.D if self.rule is SOFTMAX else (6 if self.rule.erases else 4) * shape.D**2
        return each * shape.heads * shape.T * (3 if self.mode == "train" else 1)

    @property
    def nbytes(self) -> int:
        """What must be moved: inputs and output once, three times with gradients, and the state both ways in decode."""
        shape, rule = self.shape, self.rule
        numbers = 4 * shape.D + {"none": 0, "token": 1, "channel": shape.D}[rule.decay] + rule.erases
        moved = numbers * shape.heads * shape.T * self.dtype.itemsize * (3 if self.mode == "train" else 1)
        return moved + (self.state_nbytes * 2 if self.mode == "decode" else 0)

    @property
    def state_nbytes(self) -> int:
        """Bytes of the state, which is float32."""
        return 4 * self.shape.heads * self.shape.D * (self.shape.D + self.rule.normalizes)


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of a case, with the time axis in every mode.

    Args:
        q: [B,T,H,D], k and v too; positive where the rule normalizes, of length 1 where it erases.
        log_decay: None, [B,T,H] or [B,T,H,D].
        beta: None or [B,T,H].
        weight: [B,T,H,D]; training differentiates sum(out * weight).
        state: to decode from; None in the other modes.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    weight: Tensor
    state: State | None

    @property
    def write(self) -> Additive | Delta:
        return Additive() if self.beta is None else Delta(self.beta)

    def differentiated(self) -> dict[str, Tensor]:
        """What training asks gradients of, by name."""
        named = {"q": self.q, "k": self.k, "v": self.v, "log_decay": self.log_decay, "beta": self.beta}
        return {name: x for name, x in named.items() if x is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """A copy whose tensors over the tokens went through `change`; the state stays."""
        log_decay, beta = (None if x is None else change(x) for x in (self.log_decay, self.beta))
        return Inputs(change(self.q), change(self.k), change(self.v), log_decay, beta, change(self.weight), self.state)

    def leaves(self) -> Inputs:
        """The same numbers in tensors of their own that collect gradients."""
        return replace(self.map(lambda x: x.detach().clone().requires_grad_()), weight=self.weight)


def pattern(case: Case) -> Inputs:
    """The inputs of one head of one sequence; the others are made of it, see `inputs`."""
    draw = torch.Generator().manual_seed(0)
    T, D, rule = case.shape.T, case.shape.D, case.rule

    def randn(*sizes: int) -> Tensor:
        return torch.randn(1, T, 1, *sizes, generator=draw)

    q, k, v, weight = randn(D), randn(D), randn(D).bfloat16().float(), randn(D)
    if rule.normalizes:
        q, k = elu(q) + 1, elu(k) + 1
    if rule.erases:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    log_decay = None if rule.decay == "none" else logsigmoid(randn(*((D,) if rule.decay == "channel" else ())) + 3)
    beta = torch.sigmoid(randn()) if rule.erases else None
    state = state_pattern(case, draw) if case.mode == "decode" else None
    return Inputs(q, k, v, log_decay, beta, weight, state).map(lambda x: x.to(case.dtype))


def state_pattern(case: Case, draw: torch.Generator) -> State:
    D = case.shape.D
    memory = torch.randn(1, 1, D, D, generator=draw).bfloat16().float()
    return State(memory, torch.rand(1, 1, D, generator=draw) + D if case.rule.normalizes else None)


def factors(shape: Shape) -> Tensor:
    """The factor [B,H] of every head's values: from 1 to under 2, in steps that float32 holds exactly."""
    return 1 + torch.arange(shape.heads).view(shape.B, shape.H) / (1 << (shape.heads - 1).bit_length())


def inputs(case: Case) -> Inputs:
    """The inputs of a case: in every head the same pattern, its values times a factor of the head's own.

    Every rule is linear in the values, so the exact result of one head is that of all, factor aside, and a head that is
    computed from another's inputs shows. The values of the pattern hold 8 bits, so the products are exact in float32.
    """
    one, shape, scale = pattern(case), case.shape, factors(case.shape)
    every = one.map(lambda x: x.expand(shape.B, -1, shape.H, *x.shape[3:]).contiguous())
    state = None if one.state is None else spread_state(one.state, scale)
    return replace(every, v=every.v * scale[:, None, :, None].to(case.dtype), state=state)


def spread_state(one: State, scale: Tensor) -> State:
    memory = one.memory * scale[..., None, None]
    return State(memory, None if one.key_sum is None else one.key_sum.expand(*scale.shape, -1).contiguous())
