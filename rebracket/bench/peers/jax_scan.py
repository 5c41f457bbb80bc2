"""JAX on the CPU: the recurrence as one would write it there, compiled by XLA.

Additive rules without a decay a channel run in chunks, forward and backward; the others token by token, forward only,
because a scan over tokens keeps every state for its backward pass.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from rebracket.base.tensors import named_tensors
from rebracket.bench.case import Implementation, Prepared, Results, require, require_installed
from rebracket.bench.cases.base import AttentionInputs
from rebracket.bench.cases.linear_attention import LinearAttentionCase

if TYPE_CHECKING:
    from jax import Array

    Arrays = Mapping[str, Array]

CHUNK = 64


@final
class Jax(Implementation):
    """Its thread count is fixed when it starts, so the first one it is asked for is the only one."""

    operator = LinearAttentionCase
    name = "jax"

    def __init__(self) -> None:
        self._threads: int | None = None

    def prepare(self, case: LinearAttentionCase, x: AttentionInputs, threads: int) -> Prepared:
        require_installed("jax", "pip install jax")
        require(sys.platform == "linux", "its threads can be limited on Linux only")
        require(case.dtype == torch.float32, "float32 only")
        in_chunks = case.rule.decay != "channel" and not case.rule.erases and case.mode != "decode"
        require(case.mode != "train" or in_chunks, "its scan over tokens would keep every state")
        require(not in_chunks or case.shape[1] % CHUNK == 0, f"T must be a multiple of {CHUNK}")
        require(
            self._threads in (None, threads),
            f"its thread count, {self._threads}, is fixed since it started; benchmark --threads {threads} alone",
        )
        if self._threads is None:
            limit_threads(threads)
            self._threads = threads
        return compiled(case, arrays(x), chunked if in_chunks else tokenwise)


def limit_threads(threads: int) -> None:
    """Starts JAX with so many threads: it counts the cores it may use, and only then."""
    may = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(may)[:threads])
    try:
        import jax

        jax.devices()
    finally:
        os.sched_setaffinity(0, may)


def arrays(x: AttentionInputs) -> Arrays:
    import jax.numpy as jnp

    named = {name.removeprefix("state."): t for name, t in named_tensors(x).items()}
    return {name: jnp.asarray(t.numpy()) for name, t in named.items()}


def compiled(
    case: LinearAttentionCase, given: Arrays, attend: Callable[[LinearAttentionCase, Arrays], Arrays]
) -> Prepared:
    """The whole call as one compiled function."""
    import jax

    function = partial(attend, case)
    call = jax.jit(partial(trained, function) if case.mode == "train" else function).lower(given).compile()
    return Prepared(lambda: jax.block_until_ready(call(given)), partial(results, case))


def trained(function: Callable[[Arrays], Arrays], given: Arrays) -> Arrays:
    """out and the gradients of sum(out * weight)."""
    import jax

    leaves = {name: a for name, a in given.items() if name != "weight"}

    def loss(leaves: Arrays) -> tuple[Array, Array]:
        out = function(leaves)["out"]
        return (out * given["weight"]).sum(), out

    grads, out = jax.grad(loss, has_aux=True)(leaves)
    return {"out": out} | {f"grad {name}": a for name, a in grads.items()}


def results(case: LinearAttentionCase, made: Any) -> Results:  # noqa: ANN401
    found: dict[str, Tensor] = {name: torch.from_numpy(np.array(a)) for name, a in made.items()}
    return {name: x for name, x in found.items() if case.mode == "decode" or not name.startswith("state.")}


def chunked(case: LinearAttentionCase, given: Arrays) -> Arrays:
    """Additive rules: within a chunk as a product of matrices, from chunk to chunk by the state."""
    import jax.numpy as jnp
    from jax import lax

    B, T, H, D = case.shape
    q, k, v = given["q"] * (1.0 if case.rule.normalizes else D**-0.5), given["k"], given["v"]

    def cut(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(B, T // CHUNK, CHUNK, H, *a.shape[3:]), (1, 3), (0, 2))

    tensors = [cut(a) for a in (q, k, v, *((given["log_decay"],) if "log_decay" in given else ()))]
    _, out = lax.scan(chunk, jnp.zeros((B, H, D, D), q.dtype), tensors)
    out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(B, T, H, D)
    return {"out": out / (q * jnp.cumsum(k, 1)).sum(-1, keepdims=True) if case.rule.normalizes else out}


def chunk(memory: Array, tensors: list[Array]) -> tuple[Array, Array]:
    import jax.numpy as jnp

    q, k, v, *log_decay = tensors
    scores = jnp.einsum("bhid,bhjd->bhij", q, k)
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if not log_decay:
        return memory + jnp.einsum("bhik,bhiv->bhkv", k, v), jnp.where(past, scores, 0) @ v + q @ memory
    sums = jnp.cumsum(log_decay[0], -1)
    scores = scores * jnp.exp(jnp.where(past, sums[..., :, None] - sums[..., None, :], -jnp.inf))
    out = scores @ v + (q * jnp.exp(sums)[..., None]) @ memory
    to_the_end = jnp.exp(sums[..., -1:] - sums)[..., None]
    memory = memory * jnp.exp(sums[..., -1])[..., None, None]
    return memory + jnp.einsum("bhik,bhiv->bhkv", k * to_the_end, v), out


def tokenwise(case: LinearAttentionCase, given: Arrays) -> Arrays:
    """Any rule, one token after another."""
    import jax.numpy as jnp
    from jax import lax

    B, _, H, D = case.shape
    names = [name for name in ("q", "k", "v", "log_decay", "beta") if name in given]
    over_time = {name: jnp.moveaxis(given[name], 1, 0) for name in names}
    before = given.get("memory", jnp.zeros((B, H, D, D))), given.get("key_sum", jnp.zeros((B, H, D)))
    (memory, key_sum), out = lax.scan(partial(token, case), before, over_time)
    held = {"state.memory": memory} | ({"state.key_sum": key_sum} if case.rule.normalizes else {})
    return {"out": jnp.moveaxis(out, 0, 1)} | held


def token(case: LinearAttentionCase, state: tuple[Array, Array], x: Arrays) -> tuple[tuple[Array, Array], Array]:
    import jax.numpy as jnp

    (memory, key_sum), v = state, x["v"]
    if "log_decay" in x:
        factor = jnp.exp(x["log_decay"])
        memory = memory * factor.reshape(*factor.shape, *[1] * (4 - factor.ndim))
    if "beta" in x:
        v = (v - jnp.einsum("bhk,bhkv->bhv", x["k"], memory)) * x["beta"][..., None]
    memory, key_sum = memory + x["k"][..., :, None] * v[..., None, :], key_sum + x["k"]
    read = jnp.einsum("bhk,bhkv->bhv", x["q"], memory)
    divisor = (x["q"] * key_sum).sum(-1, keepdims=True) if case.rule.normalizes else case.shape[3] ** 0.5
    return (memory, key_sum), read / divisor
