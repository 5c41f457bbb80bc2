"""Sampling the next token from the logits, with temperature, top-k and top-p and one random stream a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.base.checks import number, whole, within
from rebracket.base.random import WORD


@final
@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen from logits.

        p = softmax(logits / temperature), kept to the `top_k` likeliest tokens, then to the fewest of these that hold
        `top_p` of what they hold together; the token is where p, summed from the likeliest, passes a number of [0, 1)

    A row's random numbers depend only on its seed and on how many it has drawn: its text does not depend on the other
    rows of the batch, and two whole numbers are enough to resume it.

    Args:
        temperature: >= 0; 0 always takes the likeliest token, 1 is the model's own distribution.
        top_k: tokens to choose among, >= 1; None for all.
        top_p: share of the probability to choose among, in (0, 1]; 1 for all of it.
        seed: of the first row, >= 0; row n has seed + n.

    Raises:
        ValueError: If a number is out of its range.

    Cost: vocab numbers a row; with top_k or top_p the likeliest are sorted.

    Source: top_p is the nucleus of Holtzman et al. 2020.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
        >>> Sampler(temperature=0).choose(logits, [0.9, 0.9])
        [1, 0]
        >>> Sampler(top_k=2).choose(logits, [0.1, 0.9])
        [1, 1]
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        within("temperature", self.temperature, 0)
        if self.top_k is not None:
            whole("top_k", self.top_k)
        number("top_p", self.top_p, 0, 1)
        whole("seed", self.seed, 0, WORD)

    @property
    def draws(self) -> bool:
        """Whether a choice needs a random number."""
        return self.temperature > 0

    def choose(self, logits: Tensor, numbers: Sequence[float]) -> list[int]:
        """The next token of each row.

        Args:
            logits: [B,vocab], of any float dtype.
            numbers: B numbers in [0, 1), one a row, such as `uniform` gives; not read at temperature 0.

        Returns:
            B ids.

        Raises:
            FloatingPointError: If a row has no distribution because a logit is NaN or infinite.
        """
        if not self.draws:
            largest, ids = logits.max(-1)
            refuse_broken(largest)
            return ids.tolist()
        if self.top_k is None and self.top_p == 1:
            return pick(self.share(logits), numbers).tolist()
        logits, ids = logits.topk(min(self.top_k or logits.shape[-1], logits.shape[-1]))
        share = self.nucleus(self.share(logits))
        return ids.gather(-1, pick(share, numbers)[:, None])[:, 0].tolist()

    def share(self, logits: Tensor) -> Tensor:
        """The probabilities, in float64, so that a sum over many tokens does not lose the rare ones.

        The largest logit is subtracted first: divided by a tiny temperature, the others may be -inf but never inf.
        """
        logits = logits.double()
        return ((logits - logits.amax(-1, keepdim=True)) / self.temperature).softmax(-1)

    def nucleus(self, share: Tensor) -> Tensor:
        """Shares [B,n], largest first, with zeros behind the first that hold `top_p` together."""
        return share.masked_fill(share.cumsum(-1) - share >= self.top_p, 0)


def pick(share: Tensor, numbers: Sequence[float]) -> Tensor:
    """The first place [B] at which the running sum of the shares [B,n] exceeds that number's part of the total."""
    summed = share.cumsum(-1)
    part = summed[:, -1] * torch.tensor(numbers, dtype=share.dtype, device=share.device)
    refuse_broken(part)
    return torch.searchsorted(summed, part[:, None], right=True)[:, 0]


def refuse_broken(numbers: Tensor) -> None:
    """Raises if a number computed from the logits is not finite; NaN in any logit reaches these."""
    if not bool(numbers.isfinite().all()):
        raise FloatingPointError("logits hold NaN or infinity: the model's weights or the state are damaged")
