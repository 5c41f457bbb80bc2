"""The loss of a language model on a packed row."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebracket.data.batches import Batch


@final
@dataclass(frozen=True)
class Precision:
    """What a forward pass computes in: float32, or bfloat16 where autocast holds that safe.

    Example:
        >>> with Precision("bfloat16").on(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """

    name: str

    def on(self, device: torch.device) -> AbstractContextManager[object]:
        """The context to run the forward pass in."""
        return torch.autocast(device.type, torch.bfloat16) if self.name == "bfloat16" else nullcontext()


def nats(model: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """-ln p of each target, [T] float32.

    Args:
        model: `model(tokens [1,T], cu_seqlens=...)` gives an object with `logits` [1,T,vocab].
        batch: the row, on the model's device.
        precision: of the forward pass; the logarithm is taken in float32.
    """
    with precision.on(batch.tokens.device):
        logits = model(batch.tokens, cu_seqlens=batch.cu_seqlens).logits
    return F.cross_entropy(logits[0].float(), batch.targets[0], reduction="none")
