"""An associative memory as an object: write pairs, read by key, erase."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from rebracket.ops.attention import linear_attention
from rebracket.ops.checks import check_devices, check_write
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import State
from rebracket.ops.tensors import check_tensor
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta


@final
class AssociativeMemory:
    """One K x V matrix that stores pairs as outer products and recalls by a matrix-vector product.

    write: S <- S + k u^T (u as the write rule says),   read: S^T q,   erase: S <- S - k (S^T k)^T / |k|^2

    Args:
        K: dimension of the keys.
        V: dimension of the values.
        write: how pairs are written; a rule whose strength is a number, such as `Additive()` or `Delta(1.0)`.
        dtype: torch.float32 or torch.float64.

    Capacity, unit random keys: additive writing recalls with squared error (n - 1) / K after n pairs; `Delta(1.0)`
    recalls the newest value of a rewritten key exactly.

    Raises:
        ValueError: K or V below 1; later, keys or values of another size or on another device.
        TypeError: write is no write rule; later, a key or value that is no tensor.

    Cost: 4 K V operations a pair written (6 K V with `Delta`), 2 K V a read.

    Source: Kohonen 1972 (correlation matrix memories); Widrow and Hoff 1960 (the delta rule).

    Example:
        >>> import torch, rebracket as rb
        >>> memory = rb.AssociativeMemory(3, 2, write=rb.Delta(1.0))
        >>> key = torch.tensor([1.0, 0.0, 0.0])
        >>> memory.write(key, torch.tensor([5.0, 6.0]))
        >>> memory.write(key, torch.tensor([7.0, 8.0]))
        >>> memory.read(key)
        tensor([7., 8.])
        >>> memory.erase(key)
        >>> memory.read(key)
        tensor([0., 0.])
    """

    def __init__(self, K: int, V: int, *, write: WriteRule = Additive(), dtype: torch.dtype = torch.float32):
        check_write(write)
        if K < 1 or V < 1:
            raise ValueError(f"K and V must be at least 1, got {K} and {V}")
        self.rule = write
        self.state = State.zeros(1, 1, K, V, dtype=dtype)

    def write(self, k: Tensor, v: Tensor) -> None:
        """Writes one pair (k [K], v [V]) or n pairs in order (k [n,K], v [n,V])."""
        self.store(k, v, self.rule)

    def erase(self, k: Tensor) -> None:
        """Removes what the key [K], or each of n keys [n,K] in turn, recalls."""
        check_tensor("k", k)
        length = torch.linalg.vector_norm(k, dim=-1, keepdim=True)
        unit = k / length.masked_fill(length == 0, 1)
        self.store(unit, k.new_zeros(*k.shape[:-1], self.state.memory.shape[-1]), Delta(1.0))

    def read(self, q: Tensor) -> Tensor:
        """The values [..., V] that queries [..., K] recall."""
        check_tensor("q", q)
        memory = self.state.memory[0, 0]
        check_devices(memory, {"q": q})
        if q.ndim == 0 or q.shape[-1] != memory.shape[0]:
            raise ValueError(f"q must be [..., K = {memory.shape[0]}], got {list(q.shape)}")
        with without_autocast(q):
            return q.to(memory.dtype) @ memory

    def store(self, k: Tensor, v: Tensor, rule: WriteRule) -> None:
        """Writes pairs by a rule."""
        k, v = (self.as_rows(name, x, dim) for name, x, dim in (("k", k, -2), ("v", v, -1)))
        if k.shape[1] != v.shape[1]:
            raise ValueError(f"k and v must hold as many pairs, got {k.shape[1]} and {v.shape[1]}")
        self.state = linear_attention(k[:, :: rule.entries], k, v, write=rule, state=self.state).state

    def as_rows(self, name: str, x: Tensor, dim: int) -> Tensor:
        """One row or n rows as [1,n,1,D]."""
        D = self.state.memory.shape[dim]
        check_tensor(name, x)
        check_devices(self.state.memory, {name: x})
        if x.ndim not in (1, 2) or x.shape[-1] != D:
            raise ValueError(f"{name} must be [{D}] or [n,{D}], got {list(x.shape)}")
        return x.to(self.state.memory.dtype).reshape(1, -1, 1, D)
