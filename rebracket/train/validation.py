"""Bits per byte: what a model makes of text it never saw, in a unit that no tokenizer can bend."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from rebracket.data.batches import Batch
from rebracket.train.loss import Precision, nats


@final
@dataclass(frozen=True)
class BitsPerByte:
    """The length of a code for a text, made of a model's predictions.

        bits per byte = nats / (ln 2 * nbytes)

    nats counts every token of every document, the first (predicted from the document mark) and the end of the document
    (a mark to predict, no bytes) included, so it is the length of a code that can be decoded into the documents;
    nbytes counts each byte of their text once, and nothing for the marks.

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
        """For a line of metrics: the bits per byte and what they are made of."""
        return {"bits_per_byte": self.value, "nats": self.nats, "nbytes": self.nbytes}


@torch.no_grad()
def validate(
    model: nn.Module, batches: Iterable[Batch], byte_lengths: Tensor, device: torch.device, precision: Precision
) -> BitsPerByte:
    """Runs a model over batches and adds up its code length, in float64.

    Args:
        model: `model(tokens [1,T], cu_seqlens=...)` gives an object with `logits` [1,T,vocab].
        batches: each token once, as `rebracket.data.ordered` gives them.
        byte_lengths: [vocab] int64, bytes per id.
        device: where the model is.
        precision: of the forward pass.

    Returns:
        Nats and bytes.

    Cost: one forward pass over the text.

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
