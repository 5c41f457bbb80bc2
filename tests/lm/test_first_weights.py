"""How every model begins, whatever its layers and its width: weights, the residual stream, logits and gradients."""

import math
import re
from collections import defaultdict
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.lm import Config, LanguageModel
from rebracket.nn import LinearAttention, LowRankProjection, presets

WIDTHS, LAYERS, VOCAB, TOKENS = (64, 512, 4096), 3, 200, 48
every_preset = pytest.mark.parametrize("name", presets.names())
every_width = pytest.mark.parametrize("d_model", WIDTHS)


def begin(name: str, d_model: int, *, seed: int = 0, tied: bool = True) -> LanguageModel:
    layer = {"mixer": name, "heads": 8, "key_dim": 16, "value_dim": 12}
    sizes = {"vocab_size": VOCAB, "d_model": d_model, "mlp_dim": 96, "context": TOKENS, "tie_embeddings": tied}
    return LanguageModel(Config.from_dict({**sizes, "layers": [layer] * LAYERS}), seed=seed)


def text() -> Tensor:
    return torch.randint(VOCAB, (4, TOKENS + 1), generator=torch.Generator().manual_seed(1))


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def reading(model: LanguageModel) -> tuple[dict[str, float], Tensor]:
    """The sizes, by that of the embedding, of the stream after each block and of what is added to it; and the loss."""
    tokens, sizes, embedded = text(), {}, rms(model.embed.weight)

    def keep(name: str) -> None:
        def hook(module: nn.Module, given: object, out: Tensor | tuple[Tensor, object]) -> None:
            sizes[name] = rms(out if isinstance(out, Tensor) else out[0]) / embedded

        model.get_submodule(name).register_forward_hook(hook)

    for name, _ in model.named_modules():
        if name.endswith(("mixer.out", "mlp.down")) or name in {f"blocks.{i}" for i in range(LAYERS)}:
            keep(name)
    logits = model(tokens[:, :-1]).logits
    return sizes, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@cache
def slopes(name: str, d_model: int) -> dict[str, float]:
    """How far the loss moves, to first order, when a matrix moves by its own size in a random direction.

    The matrices of one name count together, as the decays of a few heads begin anywhere in a wide range. The head is
    not tied: a tied one is surest of the token itself, by sqrt(d_model) / 2, and the loss is of that size.
    """
    model, found = begin(name, d_model, tied=False), defaultdict[str, float](float)
    reading(model)[1].backward()
    for key, w in model.named_parameters():
        if w.ndim == 2:
            assert w.grad is not None, key
            found[re.sub(r"blocks\.\d+", "blocks", key)] += (float(w.grad.norm()) * rms(w)) ** 2
    return {key: math.sqrt(square) for key, square in found.items()}


def wanted(name: str, weight: Tensor) -> float:
    """The standard deviation of a first weight [out,in]."""
    stream = 0.5 if name.startswith(("embed", "head")) else 1.0
    if name.endswith(("mixer.out.weight", "mlp.down.weight")):
        stream = 0.5 / math.sqrt(2 * LAYERS * weight.shape[0])
    return stream / math.sqrt(weight.shape[1])


def wrong_weights(model: nn.Module) -> list[str]:
    """The matrices whose spread is not that of the rule, within five standard errors."""
    matrices = {name: w for name, w in model.named_parameters() if w.ndim == 2 and "convolution" not in name}
    return [n for n, w in matrices.items() if abs(rms(w) / wanted(n, w) - 1) > 5 / math.sqrt(2 * w.numel())]


@every_preset
@every_width
@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_is_drawn_by_the_number_of_its_inputs(name: str, d_model: int, tied: bool):
    assert wrong_weights(begin(name, d_model, tied=tied)) == []


@torch.no_grad()
def test_a_matrix_that_keeps_a_fixed_spread_is_found():
    model = begin("gla", 256)
    for block in model.each_block():
        assert isinstance(block.mixer, LinearAttention)
        block.mixer.project.weight.mul_(0.02 * math.sqrt(256))
    assert wrong_weights(model) == [f"blocks.{i}.mixer.project.weight" for i in range(LAYERS)]


@torch.no_grad()
def test_a_second_factor_that_is_drawn_by_the_inputs_of_the_first_is_found():
    model = begin("kda", 256)
    mixer = model.each_block()[1].mixer
    assert isinstance(mixer, LinearAttention)
    assert isinstance(mixer.gate, LowRankProjection)
    mixer.gate.up.weight.mul_(math.sqrt(mixer.gate.down.out_features / 256))
    assert wrong_weights(model) == ["blocks.1.mixer.gate.up.weight"]


@every_preset
@every_width
@torch.no_grad()
def test_the_stream_keeps_the_size_of_the_embedding(name: str, d_model: int):
    sizes, _ = reading(begin(name, d_model))
    for part, size in sizes.items():
        if part.endswith(("out", "down")):
            assert 0.1 < size * math.sqrt(2 * LAYERS) < 1.2, part
        else:
            assert 1 < size < math.sqrt(2), part


@every_preset
@every_width
@torch.no_grad()
def test_first_logits_are_flat_but_for_the_token_itself(name: str, d_model: int):
    model, tokens = begin(name, d_model), text()
    logits = model(tokens[:, :-1]).logits
    own = F.one_hot(tokens[:, :-1], VOCAB).bool()
    assert 0.4 < logits[~own].std() < 0.6
    assert logits[own].mean() < 0.5 * math.sqrt(d_model)
    _, loss = reading(begin(name, d_model, tied=False))
    assert loss < math.log(VOCAB) + 0.5


@every_preset
@pytest.mark.parametrize("d_model", WIDTHS[1:])
def test_every_matrix_weighs_on_the_loss_alike_at_every_width(name: str, d_model: int):
    narrow = slopes(name, WIDTHS[0])
    for part, slope in slopes(name, d_model).items():
        assert 1 / 2 < slope / narrow[part] < 2, part


def test_weights_of_a_fixed_spread_weigh_otherwise_at_every_width():
    found = []
    for d_model in WIDTHS[::2]:
        model = begin("softmax", d_model, tied=False)
        for key, w in model.named_parameters():
            if w.ndim == 2:
                nn.init.normal_(w, std=0.02, generator=torch.Generator().manual_seed(len(key)))
        reading(model)[1].backward()
        weight = model.get_parameter("blocks.0.mixer.project.weight")
        assert weight.grad is not None
        found.append(float(weight.grad.norm()) * rms(weight))
    narrow, wide = found
    assert wide > 4 * narrow


def test_first_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    first = begin("kda", 64, seed=3).state_dict()
    torch.manual_seed(6)
    again = begin("kda", 64, seed=3)
    assert all(torch.equal(first[key], w) for key, w in again.state_dict().items())
    other = begin("kda", 64, seed=4)
    matrices = {key for key, w in other.named_parameters() if w.ndim == 2}
    assert not any(torch.equal(first[key], other.get_parameter(key)) for key in matrices)
    again.init_weights(4)
    assert all(torch.equal(w, again.get_parameter(key)) for key, w in other.named_parameters())
