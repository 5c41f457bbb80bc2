"""A corpus: both sides of the text through one tokenizer that has seen only the side it may."""

import numpy as np
import pytest

from rebracket.data import corpus as module
from rebracket.data.corpus import load_corpus
from rebracket.data.text import hold_out, read
from rebracket.lm.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(
            f"document {number} of {number**5:x}, {number**7:x}\n" * (1 + number % 5)
        )
    return tmp_path


def load(folder, tmp_path, tokenizer="bpe", vocab_size=400):
    return load_corpus(
        [str(folder)], held_out=0.2, tokenizer=tokenizer, vocab_size=vocab_size, cache=tmp_path / ".cache"
    )


def text_of(corpus, side):
    return corpus.tokenizer.decode(side.tokens.tolist())


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_both_sides_decode_to_their_documents(folder, tmp_path, tokenizer):
    corpus = load(folder, tmp_path, tokenizer)
    train, held_out = hold_out(read([str(folder)]), 0.2)
    assert text_of(corpus, corpus.train) == "".join(one.text for one in train)
    assert text_of(corpus, corpus.held_out) == "".join(one.text for one in held_out)
    assert corpus.held_out.documents == len(held_out) > 0


def test_the_tokenizer_never_saw_the_held_out_text(folder, tmp_path):
    train, held_out = hold_out(read([str(folder)]), 0.2)
    found = load(folder, tmp_path).tokenizer
    assert found == Tokenizer.train((one.text for one in train), 400)
    assert found != Tokenizer.train((one.text for one in train + held_out), 400)


def test_the_tokenizer_is_learned_once_and_again_if_its_file_is_damaged(folder, tmp_path, monkeypatch):
    first = load(folder, tmp_path)
    (file,) = (tmp_path / ".cache").glob("tokenizer-*.json")
    monkeypatch.setattr(module, "learn", None)
    assert load(folder, tmp_path).tokenizer == first.tokenizer
    monkeypatch.undo()
    file.write_text("damaged")
    assert load(folder, tmp_path).tokenizer == first.tokenizer
    assert Tokenizer.load(file) == first.tokenizer


def test_a_saved_tokenizer_can_be_named(folder, tmp_path):
    saved = Tokenizer.train(["something else " * 20], 265)
    saved.save(tmp_path / ".saved.json")
    assert load(folder, tmp_path, tokenizer=str(tmp_path / ".saved.json")).tokenizer == saved
    with pytest.raises(FileNotFoundError, match="no tokenizer at wordpiece"):
        load(folder, tmp_path, tokenizer="wordpiece")


def test_the_digest_changes_with_text_and_tokenizer(folder, tmp_path):
    digests = {load(folder, tmp_path).digest, load(folder, tmp_path, vocab_size=390).digest}
    (folder / "0.txt").write_text("changed")
    digests.add(load(folder, tmp_path).digest)
    assert len(digests) == 3
    assert load(folder, tmp_path).digest in digests


def test_learning_says_so(folder, tmp_path):
    said = []
    load_corpus([str(folder)], vocab_size=260, cache=tmp_path / ".cache", say=said.append)
    assert len(said) == 1
    assert said[0].startswith("learning 260 tokens from")


def test_streams_are_whole(folder, tmp_path):
    corpus = load(folder, tmp_path)
    for side in (corpus.train, corpus.held_out):
        assert int(corpus.tokenizer.byte_lengths()[side.tokens.astype(np.int64)].sum()) == side.nbytes
        assert int((side.tokens == side.mark).sum()) == side.documents
