"""Linear attention: the recurrence under six rules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import elu, logsigmoid, normalize

from rebracket.base.tensors import map_tensors
from rebracket.bench.case import Prepared, Work, refusals
from rebracket.bench.cases.base import AttentionCase, AttentionInputs, prepare_sequence, prepare_token
from rebracket.ops.attention import explain, linear_attention
from rebracket.ops.state import State
from rebracket.ops.stepper import Stepper
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta


class Rule(NamedTuple):
    """What decays, and what else the recurrence does."""

    title: str
    decay: Literal["none", "token", "channel"] = "none"
    erases: bool = False
    normalizes: bool = False


RULES = {
    "linear": Rule("linear with normalizer", normalizes=True),
    "simple_gla": Rule("simple GLA", "token"),
    "gla": Rule("GLA", "channel"),
    "delta": Rule("delta", erases=True),
    "gated_delta": Rule("gated delta", "token", erases=True),
    "kda": Rule("KDA", "channel", erases=True),
}


@final
class LinearAttentionCase(AttentionCase):
    """`linear_attention` over a sequence, or a prepared `Stepper` in place for one token."""

    titles: ClassVar = {name: rule.title for name, rule in RULES.items()}
    note = (
        "The operations of linear attention are 4 D^2 for each token and head, 6 D^2 for a rule that erases, and three "
        "times as many with the backward pass. Shapes are BxTxHxD."
    )

    @property
    def rule(self) -> Rule:
        return RULES[self.name]

    @property
    def work(self) -> Work:
        D, rule = self.shape[3], self.rule
        decays = {"none": 0, "token": 1, "channel": D}[rule.decay]
        return self.count((6 if rule.erases else 4) * D**2, 4 * D + decays + rule.erases, D * (D + rule.normalizes))

    def draw(self) -> AttentionInputs:
        generator, rule, (_, T, _, D) = torch.Generator().manual_seed(0), self.rule, self.shape
        x = self.draw_tokens(generator)

        def randn(*sizes: int) -> Tensor:
            return torch.randn(1, T, 1, *sizes, generator=generator)

        if rule.normalizes:
            x = replace(x, q=elu(x.q) + 1, k=elu(x.k) + 1)
        if rule.erases:
            x = replace(x, q=normalize(x.q, dim=-1), k=normalize(x.k, dim=-1))
        if rule.decay != "none":
            x = replace(x, log_decay=logsigmoid(randn(*((D,) if rule.decay == "channel" else ())) + 3))
        if rule.erases:
            x = replace(x, beta=torch.sigmoid(randn()))
        x = map_tensors(x, lambda _, t: t.to(self.dtype))
        return replace(x, state=self.draw_state(generator)) if self.mode == "decode" else x

    def draw_state(self, generator: torch.Generator) -> State:
        D = self.shape[3]
        memory = torch.randn(1, 1, D, D, generator=generator).bfloat16().float()
        return State(memory, torch.rand(1, 1, D, generator=generator) + D if self.rule.normalizes else None)

    def prepare(self, backend: str, x: AttentionInputs) -> Prepared:
        normalize = self.rule.normalizes
        with refusals():
            explain(
                x.q, x.k, x.v, log_decay=x.log_decay, write=write(x.beta), normalize=normalize, state=x.state,
                backend=backend,
            )  # fmt: skip
        if x.state is not None:
            token = map_tensors(x, lambda name, t: t if name.startswith("state.") else t.squeeze(1))
            call = partial(
                Stepper(normalize=normalize, backend=backend), token.q, token.k, token.v, state=x.state,
                log_decay=token.log_decay, write=write(token.beta), inplace=True,
            )  # fmt: skip
            return prepare_token(call)
        return prepare_sequence(self, x, partial(attend, normalize, backend))


def write(beta: Tensor | None) -> Additive | Delta:
    return Additive() if beta is None else Delta(beta)


def attend(normalize: bool, backend: str, x: AttentionInputs) -> Tensor:
    return linear_attention(
        x.q, x.k, x.v, log_decay=x.log_decay, write=write(x.beta), normalize=normalize, backend=backend
    ).out
