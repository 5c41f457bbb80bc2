"""One model over one text in every mode: what each costs, and how much their logits differ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.backends.cpu.program import Segment
from rebracket.base.resources import forget_peak, peak_nbytes, resident_nbytes
from rebracket.lm.checkpoints import load_model
from rebracket.lm.model import LanguageModel
from rebracket.lm.program import ROWS, ModelProgram

Way = Literal["parallel", "chunk", "recurrent", "step", "program"]
WAYS: tuple[Way, ...] = get_args(Way)[:-1]
"""Those of the modules, which every model has."""
# Tokens whose logits are in memory at once.
SLICE = 256
WARM = 2


@final
@dataclass(frozen=True)
class Measured:
    """What one way took, and how well it predicted the text.

    Args:
        seconds: for the text, logits included.
        nbytes: peak memory while it ran, beyond what was held before.
        nats: sum of -ln p over the tokens after the first.
    """

    seconds: float
    nbytes: int
    nats: float


@final
@dataclass(frozen=True)
class Difference:
    """How much logits differ from those of another way.

    Args:
        largest: the largest difference of two logits.
        spread: standard deviation of the logits.
    """

    largest: float
    spread: float

    @property
    def relative(self) -> float:
        """The largest difference in units of the spread."""
        return self.largest / self.spread if self.spread else self.largest


def logits_by(model: LanguageModel, tokens: Tensor, way: Way) -> Iterator[Tensor]:
    """The logits [t,vocab] of a text [T], some tokens at a time.

    "parallel", "chunk" and "recurrent" read the text in one call in that mode; "step" reads token after token, as
    generation does through the modules; "program" reads it as a native program.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gla", "heads": 2}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 7, "d_model": 8, "context": 6, "layers": layers}))
        >>> [[len(part) for part in logits_by(model, torch.tensor([1, 2, 3]), way)] for way in ("chunk", "step")]
        [[3], [1, 1, 1]]
    """
    if way == "step":
        return stepped(model, tokens)
    if way == "program":
        return programmed(model, tokens)
    x, _ = model.read(tokens[None], mode=way)
    return (model.logits(part) for part in x[0].split(SLICE))


def stepped(model: LanguageModel, tokens: Tensor) -> Iterator[Tensor]:
    cache = model.empty_cache(1)
    for token in tokens.split(1):
        logits, cache = model.step(token, cache, inplace=True)
        yield logits


def programmed(model: LanguageModel, tokens: Tensor) -> Iterator[Tensor]:
    program = ModelProgram.prepare(model, tokens=len(tokens)).program
    slot = program.open()
    for part in tokens.split(ROWS):
        (outcome,) = program.run([Segment(slot, part.tolist(), logits="all")])
        assert outcome.logits is not None
        yield outcome.logits


@torch.inference_mode()
def measure(folder: Path, tokens: Sequence[int], way: Way, out: Path) -> Measured:
    """Loads a model, runs a text through it in one way, and writes the logits, as float32, to a file.

    Meant for a process of its own, whose memory no other way has used.

    Args:
        folder: of the model, which computes in float32.
        tokens: the text, at least two.
        way: how.
        out: the file.
    """
    model, text = load_model(folder)[0].float().eval(), torch.tensor(tokens)
    for _ in logits_by(model, text[:WARM], way):
        pass
    forget_peak()
    before, begun, nats, place = resident_nbytes(), time.perf_counter(), 0.0, 1
    with out.open("wb") as file:
        for logits in logits_by(model, text, way):
            file.write(logits.numpy().data)
            targets = text[place : place + len(logits)]
            nats += F.cross_entropy(logits[: len(targets)], targets, reduction="sum").item() if len(targets) else 0.0
            place += len(logits)
    return Measured(time.perf_counter() - begun, max(peak_nbytes() - before, 0), nats)


def difference(first: Path, second: Path) -> Difference:
    """How much the logits in two files of `measure` differ; the spread is that of the first.

    Raises:
        ValueError: If the files are not of one length.
    """
    if first.stat().st_size != second.stat().st_size:
        raise ValueError(f"{first} and {second} must hold as many logits")
    one, other = (torch.from_file(str(path), size=path.stat().st_size // 4) for path in (first, second))
    parts = zip(one.split(1 << 20), other.split(1 << 20), strict=True)
    return Difference(torch.stack([(a - b).abs().amax() for a, b in parts]).amax().item(), one.std().item())
