"""What each mixer, and each part of Gated DeltaNet, is worth in a language model of real text."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket import features
from rebracket.data import Batches, ordered
from rebracket.lab.base.convolved import Convolved
from rebracket.lab.base.drawing import draw_bars, draw_legend_outside, draw_line
from rebracket.lab.base.estimate import Estimate
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size
from rebracket.lab.base.text import corpus, trained
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import GateProjection, Projection
from rebracket.nn.rotary import Rotary
from rebracket.nn.writes.additive import AdditiveWrite
from rebracket.nn.writes.base import Write, Written
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.ops.writes.additive import Additive
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
BATCH, WARMUP = 2048, 40
"""Tokens of a step, steps of warm-up of the learning rate."""
RATES: Mapping[Size, Sequence[float]] = {"tiny": (6e-3,), "quick": (6e-3,), "full": (6e-3, 3e-3, 1.2e-2)}
"""Peaks of the learning rate; each model counts at the one that suits it best on other text than is reported."""
STEPS: Mapping[Size, int] = {"tiny": 60, "quick": 100, "full": 900}
STAGES, HELD_OUT = 4, 32768
"""How often along training held-out text is read, and its tokens, every other batch of them to choose a rate by."""
CONVOLUTION = 4
"""Tokens of the short convolution, which every model has."""

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
CONVOLVED: Mapping[str, Mapping[str, int]] = {name: {"convolution": CONVOLUTION} for name in ("retnet", "gla")}
"""Presets whose convolution is an option; the delta rules have it, the two others get it in `convolved`."""
PARTS = ("decay", "delta rule", "delta rule and strength", "convolution", "unit keys", "output gate", "gate and norm")
"""Without the delta rule values are written with its strength and nothing is taken away; "and strength": with 1."""
GRIDS: Mapping[Size, tuple[Sequence[str], Sequence[str]]] = {
    "tiny": (("gated_deltanet", "linear_transformer"), ()),
    "quick": (("gated_deltanet", "linear_transformer", "softmax"), ()),
    "full": (tuple(PATTERNS), PARTS),
}
LAST = f"bits {STAGES}"


@final
@dataclass(frozen=True)
class Gap:
    """Which of two models ends at more bits per byte, by how many at least and at most, and who says so."""

    worse: str
    better: str
    low: float = -math.inf
    high: float = math.inf
    source: str = ""


PILOT = "a review's runs with these first weights, one rate"
GAPS = (
    Gap("linear_transformer", "gated_deltanet", 0.1, source="Yang et al. 2023, 2024: the sign; size " + PILOT),
    Gap("linear_transformer", "gla", 0.05, source="Yang et al. 2023: the sign"),
    Gap("linear_transformer", "retnet", 0.05, source="Yang et al. 2023: the sign"),
    Gap("softmax", "gated_deltanet", 0.02, source="Yang et al. 2024: the sign; " + PILOT + ": 0.13"),
    Gap("retnet", "gated_deltanet", 0.02, source="Yang et al. 2024: the sign"),
    Gap("gla", "gated_deltanet", 0.02, source="Yang et al. 2024: the sign"),
    Gap("deltanet", "gated_deltanet", 0.02, source="Yang et al. 2024: the sign; " + PILOT + ": 0.08"),
    Gap("kda", "gated_deltanet", -0.05, 0.05, "Kimi Team 2025: less than can be seen here; " + PILOT + ": level"),
    Gap("hybrid", "gated_deltanet", -0.05, 0.05, "Yang et al. 2024: 0.01 gained, less than can be seen here"),
    Gap("without decay", "gated_deltanet", 0.003, source="Yang et al. 2024: the sign"),
    Gap("without convolution", "gated_deltanet", 0.01, source="Yang et al. 2024: the sign"),
    Gap("without output gate", "gated_deltanet", 0.01, source="Yang et al. 2024: the sign"),
    Gap("without gate and norm", "gated_deltanet", 0.003, source="Yang et al. 2024: the sign"),
    Gap("without delta rule", "gated_deltanet", 0.003, source="Yang et al. 2024: the sign"),
    Gap("without delta rule and strength", "gated_deltanet", 0.003, source="Yang et al. 2024: the sign"),
)


@final
class Language(Experiment):
    """Bits per byte of held-out Python source, of models with equal parameters, tokens and schedule."""

    question = "What is each mixer worth in a language model, and each part of Gated DeltaNet?"
    claim = (
        "After 1.8 million tokens, at equal parameters and schedule, with the short convolution in every model and "
        "each at the learning rate that suits it, plain linear attention stays above RetNet and GLA, and these, "
        "softmax and DeltaNet above Gated DeltaNet; KDA and one layer of softmax in four change nothing that these "
        "sizes could show. Its decay, delta rule, convolution, output gate and norm each lower the bits per byte: the "
        "signs of Yang et al. 2024 (Gated Delta Networks) and 2023 (GLA). Quick runs train for a ninth of that, in "
        "which the orders are others: they show that models are equal in size, learn and do not break."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        models, parts = GRIDS[size]
        pairs = [*((model, WHOLE) for model in models), *((FULL, part) for part in parts)]
        return [
            {"model": model, "without": part, "steps": STEPS[size], "rate": rate}
            for rate in RATES[size]
            for model, part in pairs
        ]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        model = build(str(cell["model"]), str(cell["without"]), int(cell["seed"]))
        steps, seconds = int(cell["steps"]), 0.0
        trainer = trainer_of(model, steps, float(cell["rate"]), int(cell["seed"]))
        found = {"parameters": model.parameter_count(), "state": model.state_nbytes(CONTEXT), "tokens": steps * BATCH}
        finite = True
        for stage in range(1, STAGES + 1):
            started = time.process_time()  # of this core, whatever else runs on it
            finite = finite and trained(trainer, steps * stage // STAGES)
            seconds += time.process_time() - started
            bits = bits_per_byte(model, 1) if finite else math.nan
            found |= {f"bits {stage}": bits, f"seconds {stage}": seconds}
        return found | {
            "bits to choose by": bits_per_byte(model, 0) if finite else math.nan,
            "broke": float(not finite),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        found = {label(r.cell): r for r in best(results)}
        counts, states = ([float(r[x]) for r in results] for x in ("parameters", "tokens"))
        trained = all(r.cell["steps"] == STEPS["full"] for r in results)
        gaps = [x for x in GAPS if trained and x.worse in found and x.better in found]
        learned = [unbroken(r["bits 1"]) - unbroken(r[LAST]) for r in found.values()]
        broke = {name: round(r["broke"] * seeds_of(r)) for name, r in found.items() if r["broke"]}
        told = [f"{name}: {count} of {seeds_of(found[name])} trainings broke" for name, count in broke.items()]
        rates = ", ".join(f"{name} {r.cell['rate']:g}" for name, r in found.items())
        return Verdict.of(
            Check("parameters apart by", max(counts) / min(counts) - 1, high=0.02, source="by design"),
            Check("tokens of training apart by", max(states) / min(states) - 1, high=0, source="by design"),
            Check.every(
                "bits per byte learned after the first quarter", learned, 0.05, source="so that training goes on"
            ),
            *(
                Check(
                    f"{x.worse} above {x.better} by",
                    unbroken(found[x.worse][LAST]) - unbroken(found[x.better][LAST]),
                    x.low,
                    x.high,
                    source=x.source,
                )
                for x in gaps
                if x.worse not in broke and x.better not in broke
            ),
            note="; ".join([*told, f"learning rates: {rates}"]) + ".",
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[3, 4])
        chosen = sorted(best(results), key=lambda r: unbroken(r[LAST]))
        whole = [r for r in chosen if r.cell["without"] == WHOLE]
        for place, r in enumerate(whole):
            tokens = [r["tokens"] * stage / STAGES / 1e6 for stage in range(1, STAGES + 1)]
            found = [unbroken(r[f"bits {i}"]) for i in range(1, STAGES + 1)]
            draw_line(left, tokens, found, color=f"C{place}", label=label(r.cell))
        left.set(xlabel="tokens of training, millions", ylabel="bits per byte of held-out text")
        left.set_title("Lower is better; legend in the order of the ends")
        draw_legend_outside(left)
        parts = [r for r in chosen if r.cell["model"] == FULL and not math.isnan(unbroken(r[LAST]))]
        draw_bars(right, [label(r.cell) for r in parts], [unbroken(r[LAST]) for r in parts], color="tab:blue")
        low, high = (limit(float(unbroken(r[LAST])) for r in parts) for limit in (min, max))
        right.set(xlim=(low - 0.1, high + 0.15), xlabel="bits per byte at the end")
        right.set_title("What leaving out one part costs")


def best(results: Sequence[Result]) -> list[Result]:
    """The result of each model at the learning rate that was best on other text; one that broke is worse than any."""
    models: dict[str, list[Result]] = {}
    for r in results:
        models.setdefault(label(r.cell), []).append(r)
    return [min(rates, key=lambda r: (r["broke"], unbroken(r["bits to choose by"]))) for rates in models.values()]


def unbroken(bits: float) -> float:
    """Bits per byte over the seeds whose training did not break; NaN where all did."""
    if not isinstance(bits, Estimate):
        return bits
    left = {seed: x for seed, x in bits.by_seed.items() if not math.isnan(x)}
    return Estimate(left) if left else math.nan


def seeds_of(result: Result) -> int:
    broke = result["broke"]
    return len(broke.by_seed) if isinstance(broke, Estimate) else 1


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
        write=write_without(size, part),
        convolution=1 if part == "convolution" else CONVOLUTION,
        norm=HeadNorm(size.value_dim, size.norm_eps, "silu" if gated else None) if normed else None,
        gate=Projection(size.d_model, size.heads * size.value_dim) if gated else None,
    )


def write_without(size: MixerSize, part: str) -> Write:
    if part == "delta rule and strength":
        return AdditiveWrite()
    return (StrengthWrite if part == "delta rule" else DeltaWrite)(size.d_model, size.heads)


@final
class StrengthWrite(Write):
    """What the delta rule writes, and nothing taken away: S_t = S_(t-1) + beta_t k_t v_t^T, beta = sigmoid(W x)."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.beta = GateProjection(d_model, heads)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        return Written(k, (v * self.beta(x).sigmoid().unsqueeze(-1)).to(v.dtype), Additive())

    def reset_parameters(self) -> None:
        """Draws W again."""
        self.beta.reset_parameters()


def convolved(name: str, mixer: Mixer) -> Mixer:
    """A layer with the short convolution of all others; plain linear attention also gets positions, as in its paper."""
    if name == "softmax":
        return Convolved(mixer, CONVOLUTION)
    if name != "linear_transformer":
        return mixer
    phi, rotary = features.make("elu1", mixer.size.key_dim), Rotary(mixer.size.key_dim, 10000.0)
    return LinearAttention(mixer.size, feature=phi, normalize=True, convolution=CONVOLUTION, rotary=rotary)


def build(name: str, part: str, seed: int) -> LanguageModel:
    """A model with as many parameters as Gated DeltaNet, as nearly as whole units of its MLPs allow."""
    missing = sized(FULL, WHOLE, MLP_DIM, 0).parameter_count() - sized(name, part, MLP_DIM, 0).parameter_count()
    return sized(name, part, MLP_DIM + round(missing / (3 * D_MODEL * DEPTH)), seed)


def sized(name: str, part: str, mlp_dim: int, seed: int) -> LanguageModel:
    """A model whose MLPs have that width, and whose mixers lack that part."""
    tables = {name: {**SIZES, **CONVOLVED.get(name, {})} for name in PATTERNS[name]}
    mixers = {"pattern": PATTERNS[name], "depth": DEPTH, "mixers": tables}
    sizes = {"vocab_size": VOCABULARY, "d_model": D_MODEL, "mlp_dim": mlp_dim, "context": CONTEXT}
    config = Config.from_dict({**sizes, **mixers})
    model = LanguageModel(config, seed=seed)
    for block, layer, size in zip(model.each_block(), config.layers, config.sizes(), strict=True):
        block.mixer = convolved(layer.mixer, block.mixer) if part == WHOLE else without(size, part)
    model.init_weights(seed)
    return model


def trainer_of(model: LanguageModel, steps: int, rate: float, seed: int) -> Trainer:
    text = corpus(TEXT, VOCABULARY)
    tables = {
        "model": {},
        "optimizer": {"learning_rate": rate, "warmup": WARMUP},
        "train": {"steps": steps, "batch_tokens": BATCH},
    }
    batches = Batches(text.train, CONTEXT, BATCH, seed)
    return Trainer(model, batches, text.tokenizer.byte_lengths(), TrainConfig.from_dict(tables), torch.device("cpu"))


def bits_per_byte(model: LanguageModel, half: int) -> float:
    """Bits per byte of every other batch of the held-out text, from the first on or from the second."""
    text = corpus(TEXT, VOCABULARY)
    rows = islice(ordered(text.held_out, CONTEXT, BATCH, HELD_OUT), half, None, 2)
    lengths = text.tokenizer.byte_lengths()
    return validate(model, rows, lengths, torch.device("cpu"), Precision("float32")).value
