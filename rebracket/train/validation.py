"""The loss of a language model, and its bits per byte of held-out text, which no choice of tokenizer changes."""

import math
from collections.abc import Iterable
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
    """What a forward pass computes in: "float32", or "bfloat16" where autocast considers it safe.

    Example:
        >>> with Precision("bfloat16").on(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """

    name: str

    def on(self, device: torch.device) -> AbstractContextManager[object]:
        """The context to run the forward pass in."""
        return torch.autocast(device.type, torch.bfloat16) if self.name == "bfloat16" else nullcontext()


@final
@dataclass(frozen=True)
class BitsPerByte:
    """The length of a text's code under a model's predictions.

        bits per byte = nats / (ln 2 * nbytes)

    nats counts every token of every document: the first (predicted from the document mark) and the end (a mark to
    predict, no bytes) too, so the documents could be decoded from a code of this length. nbytes counts the bytes of
    their text, and nothing for the marks.

    Args:
        nats: sum of -ln p over all tokens predicted.
        nbytes: bytes of text that these tokens stand for.

    Example:
        >>> BitsPerByte(nats=math.log(256) * 10, nbytes=10).value
        8.0
    """

    nats: float
    nbytes: int

    @property
    def value(self) -> float:
        """The bits per byte; inf where there are no bytes."""
        return self.nats / (math.log(2) * self.nbytes) if self.nbytes else math.inf

    def to_dict(self) -> dict[str, float]:
        """For a line of metrics: the bits per byte and what they are computed from."""
        return {"bits_per_byte": self.value, "nats": self.nats, "nbytes": self.nbytes}


def nats(model: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """-ln p of each target, [T] float32; the logarithm is taken in float32.

    Args:
        model: `model(tokens [1,T], cu_seqlens=...)` returns an object with `logits` [1,T,vocab].
        batch: the row, on the model's device.
        precision: of the forward pass.
    """
    with precision.on(batch.tokens.device):
        logits = model(batch.tokens, cu_seqlens=batch.cu_seqlens).logits
    return F.cross_entropy(logits[0].float(), batch.targets[0], reduction="none")


@torch.no_grad()
def validate(
    model: nn.Module, batches: Iterable[Batch], byte_lengths: Tensor, device: torch.device, precision: Precision
) -> BitsPerByte:
    """Runs a model over batches and adds up its code length in float64.

    Args:
        model: as for `nats`.
        batches: each token once, as `rebracket.data.ordered` gives them.
        byte_lengths: [vocab] int64, bytes per id.
        device: where the model is.
        precision: of the forward pass.

    Example:
        >>> import numpy as np
        >>> from rebracket.data import TokenStream, ordered
        >>> from rebracket.lm import Config, LanguageModel, Tokenizer
        >>> rows = ordered(TokenStream(np.array([256, 104, 105], np.uint16), 256, 1, 2, ""), 3, 3)
        >>> sizes = {"vocab_size": 257, "d_model": 8, "context": 3, "layers": [{"mixer": "gla", "heads": 2}]}
        >>> model, lengths = LanguageModel(Config.from_dict(sizes)), Tokenizer.bytes().byte_lengths()
        >>> validate(model, rows, lengths, torch.device("cpu"), Precision("float32")).nbytes
        2
    """
    model.eval()
    total, nbytes = 0.0, 0
    for batch in batches:
        total += nats(model, batch.to(device), precision).double().sum().item()
        nbytes += int(byte_lengths[batch.targets].sum())
    model.train()
    return BitsPerByte(total, nbytes)
