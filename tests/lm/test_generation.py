"""What is generated is what the whole model, run again for every token, would generate, wherever it is interrupted."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rebracket.base.files import read_tensors, write_tensors
from rebracket.base.random import uniform
from rebracket.lm import LanguageModel, Tokenizer
from rebracket.lm.cache import ModelCache
from rebracket.lm.generation import Generation, Piece, Row, Settings, refuse_replacing
from rebracket.lm.sampling import Sampler
from tests.lm.writers import BYTES, LAYERS, writer
from tests.nn.tiny import assert_same

PROMPTS = ["def ", "class Tree: é", "", "x" * 40]
SAMPLERS = {"likeliest": Sampler(temperature=0), "drawn": Sampler(temperature=1.2, top_k=40, top_p=0.95, seed=5)}
FREE = Settings(SAMPLERS["drawn"], endless=True)
every_model = pytest.mark.parametrize("name", LAYERS)
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


def begun(model: LanguageModel, prompts: list[str], settings: Settings = FREE) -> Generation:
    texts = Generation.begin(model, BYTES, len(prompts), settings)
    texts.read(prompts)
    return texts


def pieces(texts: Generation, tokens: int) -> list[Piece]:
    return [piece for step in texts.grow(tokens) for piece in step]


def tokens_of(found: list[Piece], row: int) -> list[int]:
    return [piece.token for piece in found if piece.row == row]


def text_of(found: list[Piece], row: int) -> str:
    return "".join(piece.text for piece in found if piece.row == row)


@torch.no_grad()
def naive(model: LanguageModel, prompt: str, count: int, sampler: Sampler, seed: int) -> list[int]:
    """Runs the whole model over everything for every token."""
    ids = [BYTES.document, *BYTES.encode(prompt)]
    for place in range(count):
        logits = model(torch.tensor([ids]), mode="parallel").logits[:, -1, : BYTES.document]
        ids += sampler.choose(logits, [uniform(seed, place)])
    return ids[-count:]


@every_model
@every_sampler
def test_it_is_the_whole_model_run_again_for_every_token(name: str, sampler: Sampler):
    model = writer(name)
    found = pieces(begun(model, PROMPTS, Settings(sampler, endless=True)), 12)
    for row, prompt in enumerate(PROMPTS):
        assert tokens_of(found, row) == naive(model, prompt, 12, sampler, sampler.seed + row)


@every_model
def test_rows_do_not_see_each_other(name: str):
    model = writer(name)
    together = pieces(begun(model, PROMPTS), 20)
    for row, prompt in enumerate(PROMPTS):
        alone = Settings(replace(SAMPLERS["drawn"], seed=SAMPLERS["drawn"].seed + row), endless=True)
        assert tokens_of(together, row) == tokens_of(pieces(begun(model, [prompt], alone), 20), 0)


def test_equal_prompts_get_texts_of_their_own():
    found = pieces(begun(writer("gated"), ["same"] * 3), 8)
    assert len({tuple(tokens_of(found, row)) for row in range(3)}) == 3


@every_model
@pytest.mark.parametrize("piece", [4096, 5])
def test_a_prompt_in_pieces_is_the_prompt(name: str, piece: int):
    whole, cut = begun(writer(name), PROMPTS), begun(writer(name), [""] * 4)
    cut.read([prompt[:3] for prompt in PROMPTS], piece=piece)
    cut.read([prompt[3:] for prompt in PROMPTS], piece=piece)
    assert [row.read for row in cut.rows] == [row.read for row in whole.rows] == [4, 14, 0, 40]
    assert pieces(cut, 10) == pieces(whole, 10)


@every_model
@pytest.mark.parametrize("after", [0, 1, 13])
def test_going_on_from_a_file_is_never_having_stopped(name: str, after: int, tmp_path: Path):
    model = writer(name, torch.float32)
    whole = begun(model, PROMPTS)
    unbroken = pieces(whole, 30)
    broken = begun(model, PROMPTS)
    first = pieces(broken, after)
    broken.save(tmp_path / "state")
    del broken
    resumed = Generation.load(tmp_path / "state", model, BYTES)
    assert first + pieces(resumed, 30 - after) == unbroken
    assert resumed.rows == whole.rows
    assert_same(resumed.cache.tensors(), whole.cache.tensors(), 0, 0)


LONG = 30


def stops_of(texts: list[str]) -> tuple[str, ...]:
    """Two pairs of characters, the first that end one text at least but not all."""
    pairs = dict.fromkeys(text[place : place + 2] for text in texts for place in range(4, len(text) - 1))
    return tuple(pair for pair in pairs if not all(pair in text for text in texts))[:2]


def ending(model: LanguageModel, tokens: int = LONG) -> tuple[Generation, list[Piece]]:
    """Texts of which some end and some do not."""
    free = pieces(begun(model, PROMPTS), LONG)
    stops = stops_of([text_of(free, row) for row in range(4)])
    texts = begun(model, PROMPTS, replace(FREE, stop=stops))
    return texts, pieces(texts, tokens)


@every_model
def test_texts_end_one_by_one_and_the_others_go_on(name: str):
    model = writer(name)
    free = pieces(begun(model, PROMPTS), LONG)
    texts, found = ending(model)
    lengths = [len(tokens_of(found, row)) for row in range(4)]
    assert min(lengths) < max(lengths) == LONG
    for row in range(4):
        assert tokens_of(found, row) == tokens_of(free, row)[: lengths[row]]
        assert texts.rows[row].ended == (lengths[row] < LONG)
        assert [piece.ended for piece in found if piece.row == row][-1] == (lengths[row] < LONG)


@every_model
def test_a_text_that_ended_keeps_the_past_it_had(name: str):
    """It waits while others grow, is saved and loaded with them, and continues as if it had been alone."""
    model = writer(name)
    texts, found = ending(model)
    over = next(row for row in range(4) if texts.rows[row].ended)
    ids = [BYTES.document, *BYTES.encode(PROMPTS[over]), *tokens_of(found, over), *BYTES.encode("more")]
    texts.read(["more" if row == over else "" for row in range(4)])
    wanted = naive_after(model, ids, texts.settings.sampler, texts.rows[over])
    assert tokens_of(pieces(texts, 1), over) == [wanted]


@torch.no_grad()
def naive_after(model: LanguageModel, ids: list[int], sampler: Sampler, row: Row) -> int:
    logits = model(torch.tensor([ids])).logits[:, -1, : BYTES.document]
    return sampler.choose(logits, [uniform(row.seed, row.drawn)])[0]


@every_model
@pytest.mark.parametrize("after", [5, 29])
def test_texts_that_ended_stay_so_in_a_file(name: str, after: int, tmp_path: Path):
    model = writer(name, torch.float32)
    texts, unbroken = ending(model)
    broken, _ = ending(model, 0)
    first = pieces(broken, after)
    broken.save(tmp_path / "state")
    resumed = Generation.load(tmp_path / "state", model, BYTES)
    assert sorted(first + pieces(resumed, LONG - after)) == sorted(unbroken)
    assert resumed.rows == texts.rows
    assert_same(resumed.cache.tensors(), texts.cache.tensors(), 0, 0)


def test_a_stop_string_is_never_shown_and_what_may_begin_one_is_held():
    model = writer("gated")
    plain = pieces(begun(model, PROMPTS), 40)
    text = text_of(plain, 0)
    stop = text[11:15]
    for stops in [(stop,), (stop + "never",), (stop + "never", stop[:3] + "not")]:
        texts = begun(model, PROMPTS, replace(FREE, stop=stops))
        found = pieces(texts, 40)
        wanted = text[: text.index(stop)] if stop in stops else text
        assert text_of(found, 0) + texts.rest()[0] == wanted
        assert texts.rest() == [""] * 4
    halfway = begun(model, PROMPTS, replace(FREE, stop=(stop + "never",)))
    shown = text_of(pieces(halfway, next(n for n in range(40) if len(text_of(plain[: 4 * n], 0)) >= 15)), 0)
    assert shown == text[:11]
    assert halfway.rows[0].held == stop


def test_the_end_of_the_document_ends_a_text():
    model = writer("gated")
    with torch.no_grad():
        model.embed.weight[BYTES.document] *= 3
    texts = begun(model, PROMPTS, Settings(SAMPLERS["drawn"]))
    found = pieces(texts, 150)
    over = [row for row in range(4) if texts.rows[row].ended]
    assert over
    for row in range(4):
        ids = tokens_of(found, row)
        assert (ids.index(BYTES.document) + 1 if BYTES.document in ids else 150) == len(ids)
        assert (row in over) == (BYTES.document in ids)
        assert text_of(found, row) + texts.rows[row].held == BYTES.decode(
            ids[: len(ids) - len(texts.rows[row].unfinished)]
        )
    endless = pieces(begun(model, PROMPTS), 150)
    assert len(endless) == 600
    assert BYTES.document not in [piece.token for piece in endless]


def test_ids_beyond_the_tokenizer_are_never_chosen():
    model = writer("gated")
    small = Tokenizer.bytes()
    wide = LanguageModel(replace(model.config, vocab_size=300)).double()
    with torch.no_grad():
        wide.embed.weight[257:] = 100 * wide.embed.weight[:43].sign()
    texts = Generation.begin(wide, small, 2, Settings(Sampler(temperature=1.0)))
    assert all(piece.token < 257 for piece in pieces(texts, 50))


def test_characters_are_never_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The bytes of a text are chosen for the model; the state is put away inside a character."""
    data, chosen = "a€𝄞é".encode(), []

    def scripted(self: Sampler, logits: Tensor, numbers: list[float]) -> list[int]:
        chosen.append(data[len(chosen)])
        return [chosen[-1]] * len(logits)

    monkeypatch.setattr(Sampler, "choose", scripted)
    model = writer("gated")
    texts, shown = begun(model, [""]), []
    for _ in data:
        shown += [text_of(pieces(texts, 1), 0)]
        texts.save(tmp_path / "state")
        texts = Generation.load(tmp_path / "state", model, BYTES)
    assert shown == ["a", "", "", "€", "", "", "", "𝄞", "", "é"]


def test_an_unfinished_character_is_shown_as_one_when_nothing_follows():
    texts = begun(writer("gated"), [""])
    texts._rows = [replace(texts.rows[0], unfinished=b"\xe2\x82", held="en")]
    assert texts.rest() == ["en\ufffd"]
    assert texts.rest() == [""]


def test_what_was_held_back_stands_before_the_next_prompt():
    texts = begun(writer("gated"), ["a", "b"])
    texts._rows = [replace(row, held="x", unfinished=b"\xc3", ended=True) for row in texts.rows]
    assert texts.read(["", "go on"]) == ["", "x\ufffd"]
    assert [(row.held, row.ended) for row in texts.rows] == [("x", True), ("", False)]


def test_one_text_may_go_on_in_many_ways():
    model = writer("hybrid")
    document = begun(model, ["a long document "])
    texts = document.fork(3)
    texts.read(["who?", "when?", ""])
    found = pieces(texts, 9)
    for row, question in enumerate(["who?", "when?", ""]):
        assert tokens_of(found, row) == naive(model, "a long document " + question, 9, SAMPLERS["drawn"], 5 + row)
    assert tokens_of(pieces(document, 9), 0) == naive(model, "a long document ", 9, SAMPLERS["drawn"], 5)
    with pytest.raises(ValueError, match="only a single text can be forked, got 3"):
        texts.fork(2)


def test_settings_change_and_a_new_seed_restarts_the_numbers():
    model = writer("gated")
    texts = begun(model, ["ab"])
    pieces(texts, 4)
    kept = texts.with_settings(replace(texts.settings, stop=("zzz",)))
    assert kept.rows == texts.rows
    drawn = texts.with_settings(Settings(Sampler(seed=9)))
    assert (drawn.rows[0].seed, drawn.rows[0].drawn, drawn.rows[0].read) == (9, 0, texts.rows[0].read)
    before = {name: x.clone() for name, x in texts.cache.tensors().items()}
    pieces(kept, 3)
    assert_same(texts.cache.tensors(), before, 0, 0)


def test_nothing_piles_up():
    texts = begun(writer("gated"), PROMPTS)

    def tensors_after(count: int) -> int:
        for _ in texts.grow(count):
            pass
        gc.collect()
        return sum(type(x) is Tensor for x in gc.get_objects())

    first = tensors_after(5)
    before = texts.nbytes
    assert tensors_after(30) == first
    assert texts.nbytes == before


@pytest.mark.parametrize("other", ["weights", "tokenizer"])
def test_a_state_from_another_model_is_refused(other: str, tmp_path: Path):
    model = writer("gated")
    begun(model, ["x"]).save(tmp_path / "state")
    if other == "weights":
        with pytest.raises(ValueError, match="state from another model: it was made by [0-9a-f]{16}, this is"):
            Generation.load(tmp_path / "state", writer("gated", seed=1), BYTES)
    else:
        with pytest.raises(ValueError, match="state from another tokenizer"):
            Generation.load(tmp_path / "state", model, Tokenizer.train(["aaab" * 9], 259))


def test_damaged_and_foreign_files_are_refused_and_never_replaced(tmp_path: Path):
    model, path = writer("gated"), tmp_path / "state"
    texts = begun(model, ["x"])
    refuse_replacing(path)
    texts.save(path)
    refuse_replacing(path)
    texts.cache.save(path, "abc")
    with pytest.raises(ValueError, match=r"expected a 'rebracket\.texts' file, found a 'rebracket\.model_cache'"):
        Generation.load(path, model, BYTES)
    with pytest.raises(ValueError, match="it is not replaced, give another name"):
        refuse_replacing(path)
    with pytest.raises(FileNotFoundError, match="its folder does not exist"):
        refuse_replacing(tmp_path / "no" / "state")
    with pytest.raises(ValueError, match="found a folder"):
        refuse_replacing(tmp_path)
    texts.save(path)
    tensors, about = read_tensors(path, "rebracket.texts", 1)
    write_tensors(path, tensors, "rebracket.texts", 1, about | {"rows": "[{}]"})
    with pytest.raises(ValueError, match=r"state: damaged"):
        Generation.load(path, model, BYTES)


def test_prompts_are_one_a_text():
    with pytest.raises(ValueError, match="prompts must be one a text, 2, got 3"):
        Generation.begin(writer("gated"), BYTES, 2).read(["a", "b", "c"])


def test_a_bare_stop_string_is_one_stop_string():
    assert Settings(stop="END") == Settings(stop=("END",))  # type: ignore[arg-type]


def test_stop_strings_have_characters():
    with pytest.raises(ValueError, match="stop must hold strings of at least one character"):
        Settings(stop=("a", ""))


def test_joined_rows_are_the_rows():
    model = writer("hybrid")
    caches = [model(torch.tensor([[1] * count])).cache for count in (3, 1, 9)]
    joined = ModelCache.join(caches)
    for row, cache in enumerate(caches):
        token = torch.tensor([4])
        found, wanted = model.step(token, joined.select([row])).logits, model.step(token, cache).logits
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
