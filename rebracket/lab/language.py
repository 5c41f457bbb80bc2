"""What each mixer, and each part of Gated DeltaNet, is worth in a language model of real text."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import torch

from rebracket import features
from rebracket.data import Batches, Corpus, cache_folder, load_corpus, ordered
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.train.config import TrainConfig
from rebracket.train.trainer import Trainer
from rebracket.train.validation import Precision, validate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT, VOCABULARY = "stdlib", 512
D_MODEL, DEPTH, CONTEXT = 64, 4, 256
SIZES = {"heads": 2, "key_dim": 32}
"""Of every mixer; values are as wide as keys, so that the state of every linear layer is 2 x 32 x 32 numbers."""
MLP_DIM = 176
"""Of Gated DeltaNet; the others get one that gives them its number of parameters."""
BATCH, RATE, WARMUP = 2048, 6e-3, 40
"""Tokens of a step, peak and warm-up of the learning rate, the same for all; docs/lab.md says why."""
STEPS: Mapping[Size, int] = {"tiny": 60, "quick": 100, "full": 900}
STAGES, HELD_OUT = 4, 32768
"""How often along training held-out text is read, and its tokens."""
DIVERGED = 8.0
"""Bits per byte of a uniform guess, counted for a model whose training diverged."""

FULL, WHOLE = "gated_deltanet", "nothing"
PATTERNS = {
    "gated_deltanet": ("gated_deltanet",),
    "linear_transformer": ("linear_transformer",),
    "softmax": ("softmax",),
    "deltanet": ("deltanet",),
    "retnet": ("retnet",),
    "gla": ("gla",),
    "kda": ("kda",),
    "hybrid": ("gated_deltanet", "gated_deltanet", "gated_deltanet", "softmax"),
}
PARTS = ("decay", "delta rule", "convolution", "unit keys", "output gate", "gate and norm")
GRIDS: Mapping[Size, tuple[Sequence[str], Sequence[str]]] = {
    "tiny": (("gated_deltanet", "linear_transformer"), ()),
    "quick": (("gated_deltanet", "linear_transformer", "softmax", "gla"), ("output gate",)),
    "full": (tuple(PATTERNS), PARTS),
}
LAST = f"bits {STAGES}"


@final
@dataclass(frozen=True)
class Gap:
    """Which of two models ends at more bits per byte, and by how many at least and at most."""

    worse: str
    better: str
    low: float = -math.inf
    high: float = math.inf


GAPS = (
    Gap("linear_transformer", "gated_deltanet", low=0.1),
    Gap("linear_transformer", "retnet", low=0.05),
    Gap("linear_transformer", "gla", low=0.05),
    Gap("linear_transformer", "softmax", low=-0.05),
    Gap("softmax", "gated_deltanet", low=0.02),
    Gap("retnet", "gated_deltanet", low=0.02),
    Gap("gla", "gated_deltanet", low=0.02),
    Gap("deltanet", "gated_deltanet", low=0.02),
    Gap("hybrid", "gated_deltanet", -0.15, 0.15),
    Gap("without decay", "gated_deltanet", low=0.003),
    Gap("without convolution", "gated_deltanet", low=0.01),
    Gap("without output gate", "gated_deltanet", low=0.01),
    Gap("without gate and norm", "gated_deltanet", low=0.003),
    Gap("without delta rule", "gated_deltanet", low=0.003),
    Gap("without unit keys", "gated_deltanet", low=0.003),
)


@final
class Language(Experiment):
    """Bits per byte of held-out Python source, of models with equal parameters, tokens and schedule."""

    question = "What is each mixer worth in a language model, and each part of Gated DeltaNet?"
    claim = (
        "At equal parameters, tokens and schedule plain linear attention stays 0.05 bits per byte and more above "
        "RetNet and GLA, 0.1 above Gated DeltaNet, and passes softmax by 0.05 at most; softmax, RetNet, GLA and "
        "DeltaNet stay above Gated DeltaNet. Its decay, delta rule, convolution, keys of unit length, output gate, and "
        "gate and norm together each lower the bits per byte: the signs of Yang et al. 2024 (Gated Delta Networks) and "
        "2023 (GLA), though at this size the delta rule lowers them by no more than the seeds differ, and keys of unit "
        "length where training would break. Not reproduced: softmax in every fourth layer gains nothing (within 0.15)."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        models, parts = GRIDS[size]
        pairs = [*((model, WHOLE) for model in models), *((FULL, part) for part in parts)]
        return [{"model": model, "without": part, "steps": STEPS[size]} for model, part in pairs]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        model = build(str(cell["model"]), str(cell["without"]), int(cell["seed"]))
        steps, seconds = int(cell["steps"]), 0.0
        trainer = trainer_of(model, steps, int(cell["seed"]))
        found = {"parameters": model.parameter_count(), "state": model.state_nbytes(CONTEXT)}
        for stage in range(1, STAGES + 1):
            started = time.process_time()  # of this core, whatever else runs on it
            finite = trained(trainer, steps * stage // STAGES)
            seconds += time.process_time() - started
            found |= {f"bits {stage}": bits_per_byte(model) if finite else DIVERGED, f"seconds {stage}": seconds}
        return found

    def verdict(self, results: Sequence[Result]) -> Verdict:
        found = {label(r.cell): r for r in results}
        counts = [r["parameters"] for r in results]
        gaps = [x for x in GAPS if x.worse in found and x.better in found]
        return Verdict.of(
            Check("parameters apart by", max(counts) / min(counts) - 1, high=0.02),
            *(
                Check(f"{x.worse} above {x.better} by", found[x.worse][LAST] - found[x.better][LAST], x.low, x.high)
                for x in gaps
            ),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        for r in (r for r in results if r.cell["without"] == WHOLE):
            tokens = [int(r.cell["steps"]) * BATCH * stage / STAGES for stage in range(1, STAGES + 1)]
            for axes, across in ((left, tokens), (middle, [r[f"seconds {i}"] for i in range(1, STAGES + 1)])):
                axes.plot(across, [r[f"bits {i}"] for i in range(1, STAGES + 1)], "o-", label=label(r.cell))
        left.set(xlabel="tokens of training", ylabel="bits per byte of held-out text", title="Against tokens")
        middle.set(xlabel="core seconds of training", title="Against time")
        left.legend(fontsize="x-small")
        bits = {label(r.cell): r[LAST] for r in results if r.cell["model"] == FULL}
        whole = bits.pop(FULL)
        right.barh(list(bits), [x - whole for x in bits.values()])
        right.axvline(0, color="0.5")
        right.set_xscale("symlog", linthresh=0.1)  # a model that diverged is far off
        right.set(xlabel="bits per byte above the whole", title="Gated DeltaNet")


def label(cell: Cell) -> str:
    """What a curve or a check calls a model."""
    return str(cell["model"]) if cell["without"] == WHOLE else f"without {cell['without']}"


def without(size: MixerSize, part: str) -> Mixer:
    """Gated DeltaNet as its preset builds it, but for one part."""
    feature = features.make("identity", size.key_dim)
    gated, normed = part not in ("output gate", "gate and norm"), part != "gate and norm"
    return LinearAttention(
        size,
        feature=feature if part == "unit keys" else UnitFeatures(feature),
        decay=None if part == "decay" else decays.make("gated_deltanet", size),
        write=None if part == "delta rule" else DeltaWrite(size.d_model, size.heads, 1.0),
        convolution=1 if part == "convolution" else 4,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu" if gated else None) if normed else None,
        gate=Projection(size.d_model, size.heads * size.value_dim) if gated else None,
    )


def build(name: str, part: str, seed: int) -> LanguageModel:
    """A model with as many parameters as Gated DeltaNet, as nearly as whole units of its MLPs allow."""
    missing = sized(FULL, WHOLE, MLP_DIM, 0).parameter_count() - sized(name, part, MLP_DIM, 0).parameter_count()
    return sized(name, part, MLP_DIM + round(missing / (3 * D_MODEL * DEPTH)), seed)


def sized(name: str, part: str, mlp_dim: int, seed: int) -> LanguageModel:
    """A model whose MLPs have that width, and whose mixers lack that part."""
    mixers = {"pattern": PATTERNS[name], "depth": DEPTH, "mixers": dict.fromkeys(PATTERNS[name], SIZES)}
    sizes = {"vocab_size": VOCABULARY, "d_model": D_MODEL, "mlp_dim": mlp_dim, "context": CONTEXT}
    config = Config.from_dict({**sizes, **mixers})
    model = LanguageModel(config, seed=seed)
    if part != WHOLE:
        for block, size in zip(model.each_block(), config.sizes(), strict=True):
            block.mixer = without(size, part)
        model.init_weights(seed)
    return model


def trainer_of(model: LanguageModel, steps: int, seed: int) -> Trainer:
    text = corpus(TEXT, VOCABULARY)
    tables = {
        "model": {},
        "optimizer": {"learning_rate": RATE, "warmup": WARMUP},
        "train": {"steps": steps, "batch_tokens": BATCH},
    }
    batches = Batches(text.train, CONTEXT, BATCH, seed)
    return Trainer(model, batches, text.tokenizer.byte_lengths(), TrainConfig.from_dict(tables), torch.device("cpu"))


def trained(trainer: Trainer, step: int) -> bool:
    """Trains up to a step; False if the loss is not a number."""
    try:
        while trainer.step < step:
            trainer.advance()
    except FloatingPointError:
        return False
    return True


def bits_per_byte(model: LanguageModel) -> float:
    text = corpus(TEXT, VOCABULARY)
    rows = ordered(text.held_out, CONTEXT, BATCH, HELD_OUT)
    lengths = text.tokenizer.byte_lengths()
    return validate(model, rows, lengths, torch.device("cpu"), Precision("float32")).value


@lru_cache(maxsize=1)
def corpus(text: str, vocabulary: int) -> Corpus:
    """A text and its tokenizer, which is trained once and then cached on disk."""
    return load_corpus([text], vocab_size=vocabulary, cache=cache_folder())
