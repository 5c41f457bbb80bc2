"""What every write rule is: tensors that check themselves and lower to the canonical recurrence."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from rebracket.ops.tensors import check_tensor


@final
@dataclasses.dataclass(frozen=True)
class Sizes:
    """The letters of one call: batch B, tokens T, heads of q and k Hq, heads of v H, key and value dimensions K, V."""

    B: int
    T: int
    Hq: int
    H: int
    K: int
    V: int

    def shape(self, letters: str) -> tuple[int, ...]:
        """The numbers behind letters such as "B,T,H,K"; a product such as "T*2" is taken as written."""
        return tuple([self.product(x) if "*" in x else getattr(self, x) for x in letters.split(",")])

    def product(self, letter: str) -> int:
        name, _, times = letter.partition("*")
        return getattr(self, name) * int(times)


@final
@dataclasses.dataclass(frozen=True)
class Writes:
    """The canonical writes u_t = beta_t (v_t - S~_t^T r_t), S_t = S~_t + k_t u_t^T, `per_token` of them for each token.

    k and r are [B, T * per_token, Hq or H, K], v is [B, T * per_token, H, V], beta is [H] or [B, T * per_token, H];
    r = None reads nothing back, beta = None is 1.
    """

    k: Tensor
    v: Tensor
    r: Tensor | None = None
    beta: Tensor | None = None
    per_token: int = 1


class Drawing(ABC):
    """Random tensors shaped by letters, of which `drawn` in a rule's file makes a sample of the rule for the laws."""

    @abstractmethod
    def uniform(self, low: float, high: float, letters: str) -> Tensor:
        """Numbers between low and high."""

    @abstractmethod
    def near_keys(self, letters: str) -> Tensor:
        """Vectors of length 1 close to the keys of the sample."""


class WriteRule(ABC):
    """A way to write a key and its value into the state; a frozen dataclass that carries its tensors."""

    reads_back: ClassVar[bool] = True
    """Whether the rule reads the state before it writes (an erasing rule)."""

    @property
    def entries(self) -> int:
        """Entries of k and v that one token holds."""
        return 1

    @abstractmethod
    def check(self, sizes: Sizes) -> None:
        """Raises a ValueError that names the tensor whose shape does not fit the call."""

    @abstractmethod
    def lower(self, k: Tensor, v: Tensor) -> Writes:
        """The canonical writes of this rule for keys k [B,T,Hq,K] and values v [B,T,H,V].

        k and v come in the caller's dtype: what is derived from them is computed in float32 at least.
        """

    def with_time_axis(self) -> Self:
        """The same rule for one token: tensors [B, ...] become [B, 1, ...]."""
        return self.map(lambda x: x.unsqueeze(1) if x.ndim > 1 else x)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy of the rule whose tensors went through `change`."""
        return type(self)(**{name: change(x) if isinstance(x, Tensor) else x for name, x in vars(self).items()})


def check_shape(name: str, x: Tensor, sizes: Sizes, *allowed: str) -> None:
    """Raises unless the shape of x is one of those that the letters name; a head-first one is said to be so."""
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, got {x.dtype}; convert it, for example {name}.float()"
        )
    seen = tuple(x.shape)
    if any(seen == sizes.shape(letters) for letters in allowed):
        return
    expected = " or ".join(f"[{letters}] = {list(sizes.shape(letters))}" for letters in allowed)
    raise ValueError(f"{name} must be {expected}, got {list(seen)}{hint(name, seen, sizes, allowed)}")


def hint(name: str, seen: tuple[int, ...], sizes: Sizes, allowed: tuple[str, ...]) -> str:
    """The likely mend for a wrong shape, or nothing."""
    for letters in allowed:
        wanted = sizes.shape(letters)
        if len(seen) == len(wanted) >= 3 and (seen[0], seen[2], seen[1], *seen[3:]) == wanted:
            others = ", or those of q, k and v if it is they" if name == "log_decay" else ""
            return f"; this looks head-first: pass {name}.transpose(1, 2){others}"
        if seen == (*wanted, 1):
            return f"; pass {name}.squeeze(-1)"
        if len(wanted) >= 3 and seen == (*wanted[:2], sizes.Hq, *wanted[3:]):
            return f"; it is given per head of v: pass {name}.repeat_interleave({sizes.H // sizes.Hq}, 2)"
    return hint_of_keys(seen, sizes) if name == "k" else hint_of_values(seen, sizes) if name == "v" else ""


def hint_of_keys(seen: tuple[int, ...], sizes: Sizes) -> str:
    if seen[2] == sizes.H != sizes.Hq:
        return f"; k has as many heads as q, not as v: pass q.repeat_interleave({sizes.H // sizes.Hq}, 2)"
    return ""


def hint_of_values(seen: tuple[int, ...], sizes: Sizes) -> str:
    """H is read off v, so that a head-first v shows by its time alone."""
    if seen[2] == sizes.T:
        return "; this looks head-first: pass v.transpose(1, 2)"
    if seen[2] == sizes.Hq and seen[1] % max(sizes.T, 1) == 0:
        return "; q, k and v look head-first: pass the transpose(1, 2) of each, time before heads"
    return ""


def check_beta(beta: float | Tensor, sizes: Sizes, steps: str = "T") -> None:
    """A strength of writing: a number in [0, 2], or a tensor [H] or [B,T,H]."""
    if isinstance(beta, Tensor):
        check_shape("beta", beta, sizes, "H", f"B,{steps},H")
    elif isinstance(beta, bool) or not isinstance(beta, (int, float)):
        raise TypeError(f"beta must be a number or a tensor, got {type(beta).__name__}; without beta use Additive()")
    elif not 0 <= beta <= 2:
        raise ValueError(f"beta must lie in [0, 2], got {beta}: outside it the state grows without bound")


def as_beta(beta: float | Tensor, v: Tensor) -> Tensor:
    """beta as a tensor: a number becomes one entry per head, which a short dtype of v does not round."""
    if isinstance(beta, Tensor):
        return beta
    return torch.full((v.shape[2],), float(beta), dtype=torch.promote_types(v.dtype, torch.float32), device=v.device)
