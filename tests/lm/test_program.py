"""A model as a program: it generates what its modules would, and nothing beside a text changes a bit of it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

from rebracket.lm import LanguageModel
from rebracket.lm.drafts import Drafter
from rebracket.lm.generation import Generation, Piece, Running, Settings
from rebracket.lm.sampling import Sampler
from tests.lm.writers import BYTES, LAYERS, writer
from tests.nn.tiny import assert_same

PROGRAM = Running(way="program")
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
