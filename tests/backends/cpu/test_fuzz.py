"""Random calls of the native kernels against the float64 loop.

REBRACKET_FUZZ is how many calls are made, REBRACKET_FUZZ_SEED with which of them to begin; a call has the same numbers
every time.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.backends.cpu import library, recurrence
from rebracket.ops.write import WriteRule
from rebracket.testing.budgets import FLOOR, budget, error

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")

COUNT = int(os.environ.get("REBRACKET_FUZZ", "300"))
FIRST = int(os.environ.get("REBRACKET_FUZZ_SEED", "0"))
BATCHES = 10
SIZE = 6
"""What more tokens and channels make of a budget measured on 40 tokens and 4 channels, as in the law of any shape."""
WORK = 400_000
"""Numbers in the states of all tokens of a call, at most: the loop in float64 goes through them one by one."""
DRAWS = 8
"""Further losses by which the size of a gradient's terms is known."""
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True)
class Sizes:
    """The letters of a call, and the offsets when its sequences are packed."""

    B: int
    T: int
    Hq: int
    H: int
    K: int
    V: int
    offsets: tuple[int, ...] | None

    @property
    def N(self) -> int:
        return self.B if self.offsets is None else len(self.offsets) - 1


def edge(r: random.Random, most: int) -> int:
    """A size from 1 to `most`, often next to a multiple of 16 or small."""
    near = 16 * r.randint(1, max(1, most // 16)) + r.choice((-1, 0, 0, 1))
    return min(most, r.choice((r.randint(1, 8), near, near, r.randint(1, most))))


def sizes(r: random.Random) -> Sizes:
    K, V = edge(r, r.choice((32, 256))), edge(r, r.choice((32, 512)))
    Hq = r.randint(1, 3)
    H = Hq * r.choice((1, 1, 2, 4))
    most = max(1, min(300, WORK // (K * V * H)))
    T = min(most, r.choice((0, 1, edge(r, 40), edge(r, 300))))
    if r.random() < 0.4:
        cuts = sorted(r.randint(0, T) for _ in range(r.randint(0, 5)))
        return Sizes(1, T, Hq, H, K, V, (0, *cuts, *([] if r.random() < 0.3 else [T])))
    return Sizes(r.choice((0, 1, 1, 2, 3)) if T < 40 else 1, T, Hq, H, K, V, None)


Tensors = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Draw:
    """Random tensors in float64; those of a call by name."""

    r: random.Random
    generator: torch.Generator
    tensors: Tensors = field(default_factory=dict)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def unit(self, *shape: int) -> Tensor:
        return torch.nn.functional.normalize(self.normal(*shape), dim=-1)

    def near(self, x: Tensor, heads: int) -> Tensor:
        x = x.repeat_interleave(heads // x.shape[2], 2)
        return torch.nn.functional.normalize(x + 0.1 * self.normal(*x.shape), dim=-1)


Rule = Callable[[Tensors], WriteRule]
"""A write rule from the tensors of a call."""


def draw_rule(d: Draw, name: str, s: Sizes) -> Rule:
    """The rule's tensors, with strengths that keep every transition a contraction, as in the laws."""
    x, k, shape = d.tensors, d.tensors["k"], (s.B, s.T)
    if name == "delta":
        x["beta"] = d.uniform(0.0, 1.9, *shape, s.H)
        return lambda t: rb.Delta(t["beta"])
    if name == "delta_product":
        x["beta"] = d.uniform(0.0, 1.9, s.B, s.T * 2, s.H)
        return lambda t: rb.DeltaProduct(t["beta"], writes=2)
    if name == "gated_erase":
        x["erase"], x["gate"] = d.uniform(0.2, 1.0, *shape, s.Hq, s.K), d.uniform(0.2, 1.0, *shape, s.H, s.V)
        return lambda t: rb.GatedErase(t["erase"], t["gate"])
    if name == "low_rank":
        x["a"], x["b"] = d.near(k, s.H), 0.8 * d.near(k, s.Hq)
        return lambda t: rb.LowRank(t["a"], t["b"])
    if name == "read_key":
        x["read"], x["beta"] = d.near(k, s.Hq), d.uniform(0.2, 1.2, *shape, s.H)
        return lambda t: rb.ReadKey(t["read"], t["beta"])
    return lambda _: rb.Additive()


def draw_decay(d: Draw, s: Sizes) -> None:
    kind = d.r.choice(("none", "head", "token", "channel", "channel"))
    shape = {"head": (s.H,), "token": (s.B, s.T, s.H), "channel": (s.B, s.T, s.H, s.K)}.get(kind)
    if shape is None:
        return
    log_decay = d.uniform(-0.8, 0.0, *shape)
    if kind != "head" and d.r.random() < 0.3:  # some erase
        chance = d.uniform(0.0, 1.0, *shape)
        log_decay = log_decay.masked_fill(chance < 0.1, -1e4).masked_fill(chance < 0.05, -torch.inf)
    d.tensors["log_decay"] = log_decay


@final
@dataclass(frozen=True)
class Call:
    """A call of `linear_attention`; its tensors by name, everything else apart."""

    sizes: Sizes
    name: str
    rule: Rule
    tensors: Tensors
    normalize: bool
    scale: float | None
    dtype: torch.dtype

    def __str__(self) -> str:
        held = ", ".join(f"{name} {list(x.shape)} {x.dtype} {x.stride()}" for name, x in self.tensors.items())
        return f"{self.name} normalize={self.normalize} scale={self.scale} {self.sizes}: {held}"

    def results(self, tensors: Tensors, backend: str, loss_seed: int = 1) -> Tensors:
        """Output, state and the gradients of a randomly weighted sum of both."""
        x = {name: t.detach().requires_grad_() for name, t in tensors.items()}
        state = rb.State(x["memory"], x.get("key_sum")) if "memory" in x else None
        offsets = None if self.sizes.offsets is None else torch.tensor(self.sizes.offsets)
        out, after = rb.linear_attention(
            x["q"], x["k"], x["v"], log_decay=x.get("log_decay"), write=self.rule(x), bonus=x.get("bonus"),
            normalize=self.normalize, scale=self.scale, state=state, cu_seqlens=offsets, backend=backend,
            mode="recurrent" if backend == "reference" else "auto",
        )  # fmt: skip
        found = {"out": out, "state.memory": after.memory}
        if after.key_sum is not None:
            found["state.key_sum"] = after.key_sum
        generator = torch.Generator().manual_seed(loss_seed)
        loss = torch.zeros((), dtype=torch.float64)
        for y in found.values():
            loss = loss + (y.double() * torch.randn(y.shape, generator=generator, dtype=torch.float64)).sum()
        loss.backward()
        grads = {f"grad {name}": torch.zeros_like(t) if t.grad is None else t.grad for name, t in x.items()}
        return {name: y.detach() for name, y in found.items()} | grads


def call(seed: int) -> Call:
    """The call of a seed."""
    r, d = random.Random(seed), Draw(random.Random(seed + 1), torch.Generator().manual_seed(seed))
    s, name = sizes(r), r.choice(("additive", "delta", "delta_product", "gated_erase", "low_rank", "read_key"))
    normalize, bonus = (name == "additive" and r.random() < 0.3 for _ in range(2))
    normalize = normalize and s.K > 3  # in one channel q cancels, and its gradient is a rounding error
    entries = 2 if name == "delta_product" else 1
    q, k = (
        d.uniform(0.1, 1.0, s.B, T, s.Hq, s.K) if normalize else d.unit(s.B, T, s.Hq, s.K) for T in (s.T, s.T * entries)
    )
    d.tensors.update(q=q, k=k, v=d.normal(s.B, s.T * entries, s.H, s.V))
    rule = draw_rule(d, name, s)
    draw_decay(d, s)
    if bonus:
        d.tensors["bonus"] = d.normal(s.H, s.K)
    if normalize or r.random() < 0.6:
        d.tensors["memory"] = 0.5 * d.normal(s.N, s.H, s.K, s.V)
        if normalize:
            d.tensors["key_sum"] = d.uniform(0.1, 1.1, s.N, s.H, s.K)
    dtype = r.choice(DTYPES)
    held = {name: laid_out(r, x.to(kept(r, name, dtype))) for name, x in d.tensors.items()}
    return Call(s, name, rule, held, normalize, r.choice((None, None, 0.7)), dtype)


def kept(r: random.Random, name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a tensor: that of q, but float32 for a state and often for decays and strengths."""
    wide = name in ("memory", "key_sum") or (name in ("log_decay", "beta", "bonus") and r.random() < 0.5)
    return torch.float32 if wide else dtype


def laid_out(r: random.Random, x: Tensor) -> Tensor:
    """The same numbers somewhere else in memory, with NaN around them."""
    kind = r.choice(("plain", "plain", "heads first", "transposed", "strided", "shifted", "joined"))
    if kind == "heads first" and x.ndim > 2:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "strided":
        return torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]
    if kind == "shifted":
        return torch.cat((x.new_full((1,), torch.nan), x.reshape(-1)))[1:].view(x.shape)
    if kind == "joined":
        return torch.cat((torch.full_like(x, torch.nan), x), -1)[..., x.shape[-1] :]
    return x


def compare(seed: int) -> tuple[float, str]:
    """The worst error of a call over its budget, and where."""
    made = call(seed)
    found = made.results(made.tensors, "cpu")
    wide = {name: x.double() for name, x in made.tensors.items()}
    exact = made.results(wide, "reference")
    assert found.keys() == exact.keys(), made
    worst = 0.0, ""
    for name, x in found.items():
        over = error(x, exact[name]) / (SIZE * budget(name, made.dtype))
        if 1 < over < math.inf and name.startswith("grad"):
            over *= size_of(exact[name]) / max(size_of(exact[name]), size_of_terms(made, wide, name))
        worst = max(worst, (over, f"{name} of call {seed}, {made}"))
    return worst


def size_of(x: Tensor) -> float:
    """The magnitude that an error is measured by."""
    return max(float(x.abs().amax()), FLOOR)


def size_of_terms(made: Call, wide: Tensors, name: str) -> float:
    """The largest root of a sum of squares over the terms of a gradient's entry.

    An entry is a sum over outputs, sum_i w_i J_i, and the gradient w of a short dtype comes rounded: each term is off
    by a random eps/2 of itself or less, their sum by about eps/2 sqrt(sum_i (w_i J_i)^2), however much the terms
    cancel. As the weights w are independent normal numbers, that root is the size of the same entry under other
    weights, sqrt(mean over w of (sum_i w_i J_i)^2). Only where a tensor has few entries can all of them cancel.
    """
    others = [made.results(wide, "reference", loss_seed)[name] for loss_seed in range(2, 2 + DRAWS)]
    return size_of(torch.stack(others).square().mean(0).sqrt())


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_calls_are_those_of_the_float64_loop(batch: int, record_property: Callable[[str, object], None]):
    worst = max((compare(seed) for seed in range(FIRST + batch, FIRST + COUNT, BATCHES)), default=(0.0, ""))
    record_property("worst", worst[0])
    assert worst[0] <= 1, f"{worst[0]:.2f} times the budget: {worst[1]}"


CANCELLING = 1421
"""A call in which the terms of the one entry of a gradient cancel to a fiftieth of their size."""


def test_a_gradient_whose_terms_cancel_is_judged_by_their_size():
    made = call(CANCELLING)
    wide = {name: x.double() for name, x in made.tensors.items()}
    exact = made.results(wide, "reference")["grad log_decay"]
    assert made.tensors["log_decay"].shape == (1,)
    assert size_of(exact) < size_of_terms(made, wide, "grad log_decay") / 10
    assert compare(CANCELLING)[0] <= 1


def test_a_lost_token_is_found_in_a_gradient_that_is_a_sum_over_all(monkeypatch: pytest.MonkeyPatch):
    def lossy(grad: Tensor, like: Tensor) -> Tensor:
        return sound(grad[:, 1:] if like.ndim == 1 and grad.ndim == 3 else grad, like)

    sound = recurrence.shaped
    monkeypatch.setattr(recurrence, "shaped", lossy)
    summed = [seed for seed in range(150) if (x := call(seed).tensors.get("log_decay")) is not None and x.ndim == 1]
    planted = [seed for seed in summed if call(seed).sizes.B and 1 < call(seed).sizes.T < 40]
    assert len(planted) > 3
    assert sum(compare(seed)[0] > 1 for seed in planted) > len(planted) / 2


def test_the_calls_reach_every_axis():
    made = [call(seed) for seed in range(300)]
    assert {c.name for c in made} == {"additive", "delta", "delta_product", "gated_erase", "low_rank", "read_key"}
    assert {c.dtype for c in made} == set(DTYPES)
    assert max(c.sizes.K for c in made) > 200
    assert max(c.sizes.V for c in made) > 400
    assert max(c.sizes.T for c in made) > 128
    packed = [c.sizes.offsets for c in made if c.sizes.offsets is not None]
    assert any(a == b for offsets in packed for a, b in zip(offsets, offsets[1:], strict=False))
    for name in ("log_decay", "bonus", "memory", "key_sum"):
        assert 10 < sum(name in c.tensors for c in made) < 300
    assert any(c.sizes.Hq < c.sizes.H for c in made)
    assert any(not c.tensors["q"].is_contiguous() for c in made)
