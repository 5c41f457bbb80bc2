"""A model as a program: it generates what its modules would, and nothing beside a text changes a bit of it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from rebracket.lm import LanguageModel, ModelCache, ModelOutput, model_id, program
from rebracket.lm.drafts import Drafter
from rebracket.lm.generation import Generation, Piece, Running, Settings
from rebracket.lm.sampling import Sampler
from rebracket.lm.texts import Weights
from rebracket.nn import GatedMLP, LinearAttention
from tests.lm.writers import BYTES, LAYERS, writer
from tests.nn.tiny import assert_same

PROGRAM, MODULES = Running(way="program"), Running(way="modules")
PROMPTS = ["def ", "class Tree: é", "", "abcabcabcabcabcabcab"]
SAMPLERS = {"likeliest": Sampler(temperature=0), "drawn": Sampler(temperature=0.9, top_k=40, top_p=0.95, seed=5)}
every_writer = pytest.mark.parametrize("name", LAYERS)
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


def begun(model: LanguageModel, prompts: Sequence[str], settings: Settings, running: Running = PROGRAM) -> Generation:
    texts = Generation.begin(model, BYTES, len(prompts), settings, running)
    texts.read(prompts)
    return texts


def ids_of(steps: Iterable[list[Piece]], row: int) -> list[int]:
    return [piece.token for step in steps for piece in step if piece.row == row]


def grown(texts: Generation, tokens: int) -> list[list[int]]:
    steps = list(texts.grow(tokens))
    return [ids_of(steps, row) for row in range(len(texts.rows))]


@every_writer
def test_a_program_reads_what_modules_read(name: str):
    """float32 and 19 tokens: logits within 200 roundings of their size, as the layers' own law has it."""
    model = writer(name, torch.float32)
    settings = Settings(SAMPLERS["likeliest"], endless=True)
    program, modules = (begun(model, PROMPTS, settings, Running(way=way)) for way in ("program", "modules"))
    assert program.explain() == "a program with float32 weights"
    assert modules.explain() == "the modules: they were asked for"
    with torch.no_grad():
        last = torch.tensor([row.last for row in program.rows])
        found, wanted = (model.step(last, texts.cache.fork()).logits for texts in (program, modules))
    error = (found - wanted).norm() / wanted.norm()
    assert error < 200 * torch.finfo(torch.float32).eps
    assert grown(program, 12) == grown(modules, 12)


@every_writer
@every_sampler
def test_many_texts_at_once_are_each_alone_bit_for_bit(name: str, sampler: Sampler):
    model, settings = writer(name, torch.float32), Settings(sampler, endless=True)
    prompts = [PROMPTS[n % 4] + "x" * n for n in range(64)]
    together = begun(model, prompts, settings)
    found = grown(together, 9)
    for row in (0, 17, 63):
        alone = Settings(replace(sampler, seed=sampler.seed + row), endless=True)
        one = begun(model, [prompts[row]], alone)
        assert grown(one, 9) == [found[row]]
        for key, (x,) in one.cache.tensors().items():
            mine = together.cache.tensors()[key][row]
            assert torch.equal(mine if x.ndim == 0 else mine[-len(x) :], x), key


@every_writer
@every_sampler
@pytest.mark.parametrize("drafts", [1, 4])
def test_drafts_change_no_token_and_no_bit(name: str, sampler: Sampler, drafts: int, monkeypatch: pytest.MonkeyPatch):
    guessed: list[int] = []
    learn = Drafter.learn
    monkeypatch.setattr(Drafter, "learn", lambda self, *seen: (guessed.append(seen[1]), learn(self, *seen))[1])
    model, settings = writer(name, torch.float32), Settings(sampler, endless=True)
    plain = begun(model, PROMPTS, settings)
    drafted = begun(model, PROMPTS, settings, Running(drafts=drafts))
    assert grown(drafted, 60) == grown(plain, 60)
    assert drafted.rows == plain.rows
    assert_same(drafted.cache.tensors(), plain.cache.tensors(), 0, 0)
    assert guessed
    assert sampler.draws or max(guessed) > 0


@every_sampler
def test_drafts_stop_where_a_text_stops(sampler: Sampler):
    """A stop string and the most tokens, each in the middle of drafts that would be right."""
    model = writer("gated", torch.float32)
    free = "".join(text_of(begun(model, [PROMPTS[3]], Settings(sampler, endless=True)), 80))
    settings = Settings(sampler, stop=(free[40:42],), endless=True)
    plain, drafted = (begun(model, [PROMPTS[3]], settings, Running(drafts=drafts)) for drafts in (0, 5))
    for count in (3, 4, 80):
        assert text_of(drafted, count) == text_of(plain, count)
        assert drafted.rows == plain.rows
        assert_same(drafted.cache.tensors(), plain.cache.tensors(), 0, 0)
    assert plain.rows[0].ended
    assert [texts.read(["more"]) for texts in (drafted, plain)] == [[""], [""]]
    assert text_of(drafted, 20) == text_of(plain, 20)


def test_drafts_stop_where_a_document_ends():
    model = writer("gated", torch.float32)
    with torch.no_grad():
        model.embed.weight[BYTES.document] *= 3
    settings = Settings(SAMPLERS["drawn"])
    plain, drafted = (begun(model, PROMPTS, settings, Running(drafts=drafts)) for drafts in (0, 5))
    assert grown(drafted, 150) == grown(plain, 150)
    assert drafted.rows == plain.rows
    assert any(row.ended for row in plain.rows)
    assert_same(drafted.cache.tensors(), plain.cache.tensors(), 0, 0)


def text_of(texts: Generation, tokens: int) -> list[str]:
    return [piece.text for step in texts.grow(tokens) for piece in step]


@every_writer
def test_a_text_saved_by_modules_goes_on_in_a_program_and_back(name: str, tmp_path: Path):
    model, settings = writer(name, torch.float32), Settings(SAMPLERS["likeliest"], endless=True)
    whole = begun(model, PROMPTS, settings, MODULES)
    wanted = grown(whole, 18)
    texts, found = begun(model, PROMPTS, settings, MODULES), []
    for running in (PROGRAM, MODULES, Running(drafts=3)):
        found.append(grown(texts, 6))
        texts.save(tmp_path / "state")
        texts = Generation.load(tmp_path / "state", model, BYTES, running)
    assert [[token for part in found for token in part[row]] for row in range(4)] == wanted
    assert [row.read for row in texts.rows] == [row.read for row in whole.rows]


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_rounded_weights_are_the_same_program_with_other_numbers(weights: Weights, tmp_path: Path):
    model, settings = writer("hybrid", torch.float32), Settings(SAMPLERS["drawn"], endless=True)
    running = Running(weights=weights)
    texts = begun(model, PROMPTS, settings, running)
    assert texts.explain() == f"a program with {weights} weights"
    unbroken = grown(texts, 24)
    broken = begun(model, PROMPTS, settings, Running(weights=weights, drafts=2))
    first = grown(broken, 11)
    broken.save(tmp_path / "state")
    rest = grown(Generation.load(tmp_path / "state", model, BYTES, running), 13)
    assert [a + b for a, b in zip(first, rest, strict=True)] == unbroken
    assert unbroken != grown(begun(model, PROMPTS, settings), 24)


def hooked(model: LanguageModel) -> str:
    model.mixers()[1].register_forward_hook(lambda *_: None)
    return r"blocks\.1\.mixer \(LinearAttention\) has forward hooks"


def replaced(model: LanguageModel) -> str:
    mixer = model.mixers()[0]
    assert isinstance(mixer, LinearAttention)
    mixer.out = torch.nn.Linear(20, 12)  # type: ignore[assignment]
    return "a part was replaced by one without operations: 'Linear' object has no attribute 'lower'"


def patched(model: LanguageModel) -> str:
    model.norm.forward = lambda x: x
    return r"norm \(RMSNorm\) has a forward of its own"


def longer(model: LanguageModel) -> str:
    model.norm.double()
    return r"norm\.weight is torch\.float64 on cpu"


def derived(model: LanguageModel) -> str:
    class Louder(GatedMLP):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    block = model.each_block()[0]
    block.mlp = Louder(12, 10)
    return r"blocks\.0\.mlp \(Louder\) has a forward of its own and no `lower`"


@pytest.mark.parametrize("change", [hooked, replaced, patched, longer, derived])
def test_a_changed_model_runs_through_its_modules_and_says_why(change: Callable[[LanguageModel], str]):
    model = writer("gated", torch.float32)
    why = change(model)
    texts = Generation.begin(model, BYTES)
    assert re.match(f"the modules: {why}", texts.explain())
    for running in (PROGRAM, Running(drafts=2), Running(weights="int8")):
        with pytest.raises(ValueError, match=f"a program was asked for, and the model cannot be one: {why}"):
            Generation.begin(model, BYTES, running=running)


def test_hooks_still_run():
    model, seen = writer("gated", torch.float32), []
    model.register_forward_hook(lambda *_: seen.append(1))
    assert len(grown(begun(model, ["ab"], Settings(), Running()), 3)[0]) == 3
    assert len(seen) == 4  # the prompt and three tokens


def test_ways_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="got modules"):
        Running(way="modules", drafts=1)
    with pytest.raises(ValueError, match="weights"):
        Running(weights="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drafts"):
        Running(drafts=-1)


@pytest.mark.parametrize("use", ["read", "grow", "save"])
def test_other_weights_than_were_packed_are_refused(use: str, tmp_path: Path):
    model = writer("gated", torch.float32)
    texts = begun(model, ["ab"], Settings())
    with torch.no_grad():
        model.norm.weight.mul_(2)
    uses: dict[str, Callable[[], object]] = {
        "read": lambda: texts.read(["c"]),
        "grow": lambda: grown(texts, 1),
        "save": lambda: texts.save(tmp_path / "x"),
    }
    with pytest.raises(ValueError, match="model has other weights than it had when its program was prepared"):
        uses[use]()
    assert not (tmp_path / "x").exists()


def test_weights_that_are_no_numbers_are_found():
    model = writer("gated", torch.float32)
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="logits hold NaN or infinity"):
        grown(begun(model, ["ab"], Settings()), 1)


def test_a_model_is_hashed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    counted: list[LanguageModel] = []
    monkeypatch.setattr(program, "model_id", lambda model: (counted.append(model), model_id(model))[1])
    model = writer("gated", torch.float32)
    texts = begun(model, ["ab"], Settings())
    texts.save(tmp_path / "one")
    loaded = Generation.load(tmp_path / "one", model, BYTES)
    for each in (texts, loaded, loaded.fork(2), loaded.with_settings(Settings())):
        each.save(tmp_path / "state")
        each.save(tmp_path / "state")
    assert len(counted) == 2
    with torch.no_grad():
        model.norm.weight.mul_(2)
    identity = program.Identity(model)
    before = identity.model_id
    with torch.no_grad():
        model.norm.weight.mul_(2)
    assert identity.model_id not in (before, texts._identity.__dict__["_hashed"])


def test_texts_outgrow_the_room_they_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program, "SPARE", 64)
    model, settings = writer("hybrid", torch.float32), Settings(SAMPLERS["likeliest"], endless=True)
    small = begun(model, PROMPTS[:2], settings)
    found = grown(small, 700)
    monkeypatch.setattr(program, "SPARE", 4096)
    roomy = begun(model, PROMPTS[:2], settings)
    assert grown(roomy, 700) == found
    assert_same(small.cache.tensors(), roomy.cache.tensors(), 0, 0)


class Scripted:
    """What stands in for a model: it answers every step with the next of its tokens."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers, self.embed = list(answers), torch.nn.Embedding(1, 1)

    def empty_cache(self, rows: int) -> ModelCache:
        return writer("gated", torch.float32).empty_cache(rows)

    def step(self, tokens: torch.Tensor, cache: ModelCache, *, inplace: bool = False) -> ModelOutput:
        logits = torch.zeros(len(tokens), BYTES.vocab_size)
        logits[:, self.answers.pop(0)] = 1
        return ModelOutput(logits, cache)


def test_what_stands_in_for_a_model_is_asked_step_by_step():
    texts = Generation.begin(cast("LanguageModel", Scripted(b"abc")), BYTES, 1, Settings(Sampler(temperature=0)))
    assert "Scripted is no LanguageModel" in texts.explain()
    assert text_of(texts, 3) == ["a", "b", "c"]
