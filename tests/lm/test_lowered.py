"""Models as programs: what a model lowers itself to computes what its modules compute, and holds what they hold."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from rebracket import features
from rebracket.backends.reference.program import Program, Segment, Slot
from rebracket.lm import Config, LanguageModel, ModelCache
from rebracket.nn import presets
from tests.lm.tiny import MIXED, PLAIN, SIZES, text
from tests.nn.tiny import stir

COUNT = 11
# Of a row computed one way and another in float64: sums of at most some tens of terms, a few layers deep.
RELATIVE = 1e-10


def another(default: object) -> object:
    """Another value that an option with that default may have."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return "dpfp"
    return default / 2 if isinstance(default, float) else 3


def models() -> dict[str, Mapping[str, Any]]:
    """Every preset, with its defaults and with each option changed, every feature map, and hybrids."""
    found: dict[str, Mapping[str, Any]] = {"mixed": MIXED, "tied": {**MIXED, "tie_embeddings": True, "mlp_dim": 0}}
    for name in presets.names():
        options = presets.options(name)
        chosen = [{}, *({option: another(x.default)} for option, x in options.items())]
        if "feature" in options:
            positive = name in ("linear_transformer", "cosformer")
            maps = [x for x in features.names() if features.make(x, 6).positive or not positive]
            chosen += [{"feature": x} for x in maps]
        for settings in chosen:
            layers = [{"mixer": name, **SIZES, **settings}, {"mixer": name, "heads": 3, "key_dim": 4, **settings}]
            found["-".join([name, *(f"{key}={value}" for key, value in settings.items())])] = {
                **PLAIN,
                "layers": layers,
            }
    return found


MODELS = models()


def model_of(name: str) -> LanguageModel:
    model = LanguageModel(Config.from_dict(MODELS[name])).to(torch.float64)
    stir(model)
    return model


def ragged(program: Program, slots: list[Slot], tokens: Tensor, cuts: list[list[int]]) -> list[Tensor]:
    """The logits of every text, read in calls that cut each text at places of its own."""
    logits: list[list[Tensor]] = [[] for _ in slots]
    pieces = [[0, *places, tokens.shape[1]] for places in cuts]
    for call in itertools.zip_longest(*map(itertools.pairwise, pieces), fillvalue=(0, 0)):
        texts = zip(slots, tokens.tolist(), call, strict=True)
        segments = [Segment(slot, ids[begin:end]) for slot, ids, (begin, end) in texts]
        parts = program.run(segments).split([len(segment.tokens) for segment in segments])
        for each, part in zip(logits, parts, strict=True):
            each.append(part)
    return [torch.cat(each) for each in logits]


def close(found: Tensor, wanted: Tensor, name: str) -> None:
    error = (found - wanted).norm() / wanted.norm() if wanted.norm() else found.norm()
    assert error <= RELATIVE, f"{name}: {error}"


def past_of(cache: ModelCache, row: int) -> dict[str, Tensor]:
    return {name: x[row] for name, x in cache.tensors().items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_lowered_model_is_the_model(name: str):
    model, tokens = model_of(name), text(3, COUNT)
    program = Program(model.lower())
    with torch.no_grad():
        wanted, cache = model(tokens)
    slots = [program.empty() for _ in range(3)]
    for row, logits in enumerate(ragged(program, slots, tokens, [[4, 4], [1, 7], list(range(1, COUNT))])):
        close(logits, wanted[row], f"{name}, logits of text {row}")
        for key, x in past_of(cache, row).items():
            found = slots[row]["seen"][0] if key.endswith("seen") else slots[row][key]
            close(found.double(), x.double(), f"{name}, {key} of text {row}")
