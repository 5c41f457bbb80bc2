"""What holds for every language model, whatever its layers are."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from rebracket.lm import LanguageModel, ModelCache
from rebracket.lm.prefill import prefill
from rebracket.nn import weight_decay_groups
from tests.lm.tiny import CONFIGS, SIZES, VOCAB, B, T, config, language_model, text
from tests.nn.tiny import assert_same, gradients, stir

MODES = ("parallel", "chunk", "recurrent")
every_model = pytest.mark.parametrize("name", CONFIGS)


def results(output: tuple[Tensor, ModelCache]) -> dict[str, Tensor]:
    logits, cache = output
    return {"logits": logits, **cache.tensors()}


@pytest.mark.parametrize("name", ["gla", "mixed"])
def test_it_is_blocks_between_an_embedding_and_its_transpose(name: str):
    model, tokens = language_model(name), text()
    w = model.state_dict()

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / (x.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()

    x = w["embed.weight"][tokens]
    for i, mixer in enumerate(model.mixers()):
        x = x + mixer(normed(x, w[f"blocks.{i}.mixer_norm.weight"]))[0]
        gate, up = (normed(x, w[f"blocks.{i}.mlp_norm.weight"]) @ w[f"blocks.{i}.mlp.gate_up.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ w[f"blocks.{i}.mlp.down.weight"].T
    wanted = normed(x, w["norm.weight"]) @ w["embed.weight" if model.head is None else "head.weight"].T
    assert (model.head is None) == model.config.tie_embeddings == (name == "gla")
    torch.testing.assert_close(model(tokens).logits, wanted, rtol=1e-9, atol=1e-9)


@every_model
@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(name: str, mode: str):
    model = language_model(name)
    wanted, found = model(text()), model(text(), mode=mode)
    assert_same(results(found), results(wanted))
    assert_same(gradients(model, found.logits), gradients(model, wanted.logits), 1e-8, 1e-8)


@every_model
def test_float32_stays_within_its_rounding(name: str):
    model = language_model(name)
    wanted = model(text()).logits
    slopes = gradients(model, wanted)
    found = model.float()(text()).logits
    pairs = {"logits": (found, wanted)} | {k: (x, slopes[k]) for k, x in gradients(model, found).items()}
    for key, (short, exact) in pairs.items():
        error = (short.double() - exact).norm() / exact.norm()
        assert error < 1000 * torch.finfo(torch.float32).eps, key


@every_model
@pytest.mark.parametrize("cuts", [[1], [4, 5], [2, 2, 7]])
def test_any_cutting_is_the_whole(name: str, cuts: list[int]):
    model, tokens = language_model(name), text()
    cache, pieces = None, []
    for begin, end in zip([0, *cuts], [*cuts, T], strict=True):
        logits, cache = model(tokens[:, begin:end], cache=cache)
        pieces.append(logits)
    assert cache is not None
    assert_same(results((torch.cat(pieces, 1), cache)), results(model(tokens)))


@every_model
@pytest.mark.parametrize("inplace", [False, True])
@torch.no_grad()
def test_steps_are_the_whole(name: str, inplace: bool):
    model, tokens = language_model(name), text()
    cache, pieces = model.empty_cache(B), []
    for t in range(T):
        logits, cache = model.step(tokens[:, t], cache, inplace=inplace)
        pieces.append(logits)
    assert_same(results((torch.stack(pieces, 1), cache)), results(model(tokens)))


@every_model
def test_packed_is_separate(name: str):
    model, tokens, bounds = language_model(name), text(1, 10), [0, 4, 4, 9]
    logits, cache = model(tokens, cu_seqlens=torch.tensor(bounds))
    more = text(3, 2, seed=3)
    later = model(more, cache=cache).logits
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        alone, kept = model(tokens[:, begin:end])
        torch.testing.assert_close(logits[:, begin:end], alone, rtol=1e-9, atol=1e-9)
        then = model(more[row : row + 1], cache=kept).logits
        torch.testing.assert_close(later[row : row + 1], then, rtol=1e-9, atol=1e-9)


@every_model
def test_the_past_does_not_know_the_future(name: str):
    model, tokens = language_model(name), text()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    before, after = model(tokens).logits, model(changed).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5], after[:, 5])


@every_model
@torch.no_grad()
def test_forks_go_their_own_ways(name: str):
    model, tokens = language_model(name), text()
    _, cache = model(tokens)
    kept = {key: x.clone() for key, x in cache.tensors().items()}
    wanted = model(tokens[:, :3], cache=cache).logits
    branch = cache.fork()
    for t in range(3):
        logits, branch = model.step(tokens[:, t], branch, inplace=True)
        torch.testing.assert_close(logits, wanted[:, t], rtol=1e-9, atol=1e-9)
    assert_same(cache.tensors(), kept, 0, 0)


@every_model
def test_recomputing_changes_no_gradient(name: str):
    model = language_model(name)
    wanted = model(text()).logits
    slopes = gradients(model, wanted)
    model.recompute = True
    found = model(text())
    assert_same({"logits": found.logits}, {"logits": wanted}, 0, 0)
    assert_same(gradients(model, found.logits), slopes, 0, 0)


def test_recomputing_holds_less():
    model = language_model("gla")
    tokens = text(2, 100)

    def held() -> int:
        total = 0

        def pack(x: Tensor) -> Tensor:
            nonlocal total
            total += x.nbytes
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            model(tokens)
        return total

    plain = held()
    model.recompute = True
    assert held() < plain / 4


@every_model
def test_a_gradient_reaches_through_the_cache(name: str):
    model, tokens = language_model(name), text()
    _, cache = model(tokens[:, :5])
    pieces = gradients(model, model(tokens[:, 5:], cache=cache).logits)
    whole = gradients(model, model(tokens).logits[:, 5:])
    assert_same(pieces, whole, 1e-8, 1e-8)


@every_model
def test_every_weight_learns(name: str):
    model = language_model(name)
    for key, slope in gradients(model, model(text()).logits).items():
        assert slope.abs().max() > 1e-7, key


@every_model
def test_weights_drawn_late_are_those_drawn_at_once(name: str):
    wanted = LanguageModel(config(name), seed=4)
    with torch.device("meta"):
        late = LanguageModel(config(name))
    late.to_empty(device="cpu")
    late.init_weights(4)
    assert_same(late.state_dict(), wanted.state_dict(), 0, 0)
    assert torch.equal(late(text()).logits, wanted(text()).logits)


def test_weights_can_be_drawn_again():
    model = LanguageModel(config("mixed"), seed=4)
    wanted = {name: x.clone() for name, x in model.state_dict().items()}
    stir(model)
    model.init_weights(5)
    assert not torch.equal(model.embed.weight, wanted["embed.weight"])
    model.init_weights(4)
    assert_same(model.state_dict(), wanted, 0, 0)


def test_drawing_leaves_the_outer_generator_alone():
    model = LanguageModel(config("mixed"))
    torch.manual_seed(9)
    wanted = torch.rand(3)
    torch.manual_seed(9)
    model.init_weights(0)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 3, 9])
@every_model
def test_the_state_is_as_large_as_it_says(name: str, dtype: torch.dtype, count: int):
    model = language_model(name, dtype)
    _, cache = model(text(1, count))
    assert cache.nbytes == model.state_nbytes(count)


@every_model
def test_its_own_keys_and_values_are_those_of_a_softmax_model(name: str):
    made = config(name)
    windows = [tuple(option for option in x.options if option[0] == "window") for x in made.layers]
    layers = [dataclasses.replace(x, mixer="softmax", options=y) for x, y in zip(made.layers, windows, strict=True)]
    softmax = LanguageModel(dataclasses.replace(made, layers=tuple(even(x) for x in layers)))
    even_config = dataclasses.replace(made, layers=tuple(even(x) for x in made.layers))
    counts = 8 * len(layers)
    assert softmax.state_nbytes(7) - counts == even_config.kv_cache_nbytes(7)
    assert even_config.kv_cache_nbytes(7, dtype=torch.bfloat16) * 2 == even_config.kv_cache_nbytes(7)


def even(layer):
    """The layer with keys that rotary positions can turn."""
    return dataclasses.replace(layer, key_dim=layer.key_dim + layer.key_dim % 2)


def test_tied_weights_are_one():
    made = config("gla")
    tied, free = LanguageModel(made), LanguageModel(dataclasses.replace(made, tie_embeddings=False))
    assert free.parameter_count() - tied.parameter_count() == VOCAB * made.d_model
    decayed, _ = weight_decay_groups(tied, 0.1)
    assert sum(p is tied.embed.weight for p in decayed["params"]) == 1


def test_a_model_without_mlps_has_none():
    bare = LanguageModel(dataclasses.replace(config("gla"), mlp_dim=0))
    assert not any("mlp" in name for name, _ in bare.named_parameters())
    assert bare(text()).logits.shape == (B, T, VOCAB)


def test_logits_of_some_tokens_only():
    model = language_model("mixed")
    x, _ = model.read(text())
    torch.testing.assert_close(model.logits(x[:, -1]), model(text()).logits[:, -1])


def test_the_summary_says_what_is_there():
    model = LanguageModel(config("mixed"))
    lines = model.summary()
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in lines[0]
    assert lines[1] == "layer 0: gated_deltanet, 4 heads on 2 of 6 x 5, state 1,008 bytes"
    assert [layer.mixer in line for layer, line in zip(model.config.layers, lines[1:-1], strict=True)] == [True] * 4
    assert f"{model.state_nbytes(16):,}" in lines[-1]
    assert f"{model.config.kv_cache_nbytes(16):,}" in lines[-1]


def test_it_learns():
    torch.manual_seed(0)
    model = LanguageModel(config("mixed"))
    optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1), lr=0.03)
    tokens = torch.arange(12).remainder(5).expand(2, -1)
    losses = []
    for _ in range(25):
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Logits of standard deviation 1/2 cost 1/8 on average, give or take 1/2 / sqrt(5) for 5 tokens; three times that.
    assert abs(losses[0] - torch.tensor(float(VOCAB)).log() - 1 / 8) < 3 / 2 / 5**0.5
    assert losses[-1] < 0.2


@pytest.mark.parametrize(("name", "recompute"), [("gated_deltanet", False), ("gla", True)])
def test_compiling_captures_the_whole_model(name: str, recompute: bool):
    model = language_model(name)
    model.recompute = recompute
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    # The second length makes the length a symbol.
    for count in (5, 8):
        wanted, found = model(text(2, count)), compiled(text(2, count))
        assert_same(results(found), results(wanted))
        assert_same(gradients(model, found.logits), gradients(model, wanted.logits))


def test_wrong_tokens_are_refused():
    model = language_model("gla")
    with pytest.raises(TypeError, match=r"tokens must be int64 or int32, got torch\.float32"):
        model(text().float())
    with pytest.raises(ValueError, match=r"tokens must be \[B,T\]"):
        model(text()[0])
    with pytest.raises(ValueError, match=r"tokens must be \[B\]"):
        model.step(text(), model.empty_cache(B))


def test_a_cache_of_another_model_is_refused():
    model, other = language_model("gla"), language_model("mixed")
    with pytest.raises(ValueError, match="cache must have 2 layers, got 4"):
        model(text(), cache=other.empty_cache(B))
    with pytest.raises(ValueError, match="cache"):
        model(text(), cache=language_model("deltanet").empty_cache(B))


def test_int32_tokens_are_the_same():
    model = language_model("gla")
    assert torch.equal(model(text().int()).logits, model(text()).logits)


def test_sizes_differ_from_layer_to_layer():
    shapes = [x.shape for name, x in language_model("mixed").empty_cache(1).tensors().items() if "memory" in name]
    assert shapes == [(1, 4, 6, 5), (1, 1, 3, 7), (1, 2, 8, 4)]
    assert SIZES["key_dim"] != SIZES["value_dim"]


def seen_modules(model: LanguageModel) -> set[str]:
    """A set that fills with the names of the modules whose hooks run."""
    seen: set[str] = set()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: seen.add(f"before {name}"))
        module.register_forward_hook(lambda *_, name=name: seen.add(f"after {name}"))
    return seen


@every_model
def test_hooks_run_in_a_forward_pass_in_a_step_and_in_generation(name: str):
    model = language_model(name)
    seen = seen_modules(model)
    _, cache = model(text())
    wanted = set(seen)
    assert {"before ", "after blocks.0", "after blocks.0.mixer", "after blocks.1.mixer.out", "after norm"} <= wanted
    seen.clear()
    model.step(text()[:, 0], cache)
    assert seen == wanted
    seen.clear()
    prefill(model, [[1, 2], [3]], model.empty_cache(2))
    assert seen == wanted


@every_model
def test_reading_runs_the_hooks_of_all_modules_but_the_model(name: str):
    model = language_model(name)
    seen = seen_modules(model)
    model(text())
    called = set(seen)
    seen.clear()
    x, _ = model.read(text())
    assert {"before blocks.0", "after blocks.1.mixer.out"} <= seen
    model.logits(x)
    assert seen == called - {"before ", "after "}


def test_what_a_hook_returns_is_what_counts():
    model = language_model("mixed")
    _, cache = model(text())
    model.mixers()[0].register_forward_hook(lambda _module, _given, result: (0 * result[0], result[1]))
    model.register_forward_hook(lambda _module, _given, result: result._replace(logits=result.logits + 1))
    without = language_model("mixed")
    with torch.no_grad():
        without.mixers()[0].get_parameter("out.weight").zero_()
    token = text()[:, 0]
    torch.testing.assert_close(model.step(token, cache).logits, without.step(token, cache).logits + 1)


class Adapter(torch.nn.Module):
    """x W^T + x A^T around a linear layer."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.a = base, torch.nn.Parameter(torch.randn_like(base.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + torch.nn.functional.linear(x, self.a.to(x.dtype))

    @property
    def weight(self) -> Tensor:
        return self.base.weight


@every_model
def test_an_adapter_around_every_linear_layer_is_a_change_of_its_weight(name: str):
    adapted, merged = language_model(name), language_model(name)
    for path, module in list(adapted.named_modules()):
        if isinstance(module, torch.nn.Linear):
            adapter = Adapter(module)
            adapted.set_submodule(path, adapter)
            with torch.no_grad():
                merged.get_parameter(f"{path}.weight").add_(adapter.a)
    (found, after), (wanted, cache) = adapted(text()), merged(text())
    torch.testing.assert_close(found, wanted)
    gradients = torch.autograd.grad(found.sin().sum(), [m.a for m in adapted.modules() if isinstance(m, Adapter)])
    assert all(x.abs().sum() > 0 for x in gradients)
    token = text()[:, 0]
    torch.testing.assert_close(adapted.step(token, after).logits, merged.step(token, cache).logits)


@every_model
def test_logits_of_the_last_tokens_are_those_of_all(name: str):
    model = language_model(name)
    wanted, cache = model(text())
    for last in (0, 1, 4, T + 3):
        found, after = model(text(), last=last)
        torch.testing.assert_close(found, wanted[:, max(T - last, 0) :])
        assert_same(after.tensors(), cache.tensors())
    with pytest.raises(ValueError, match="last must be"):
        model(text(), last=-1)


@every_model
def test_training_continues_from_a_cache_that_was_read_without_gradients(name: str):
    model = language_model(name)
    before, tokens = [[1, 2, 3], [4, 5, 6]], text()[:2]
    left = prefill(model, before, model.empty_cache(2))
    assert all(x.is_inference() for x in left.tensors().values())
    with torch.no_grad():
        _, usual = model(torch.tensor(before))
    assert_same(gradients(model, model(tokens, cache=left).logits), gradients(model, model(tokens, cache=usual).logits))
    found, wanted = (model.step(tokens[:, 0], cache).logits for cache in (left, usual))
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    with torch.no_grad():
        found, wanted = (model.step(tokens[:, 0], cache, inplace=True).logits for cache in (left, usual))
    torch.testing.assert_close(found, wanted)
