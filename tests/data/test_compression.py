"""xz is given exactly what is said, and the held-out text counts by what it adds."""

import lzma

import pytest

from rebracket.data import Corpus
from rebracket.data import compression as module
from rebracket.data.compression import xz
from rebracket.lm.tokenizer import Tokenizer
from tests.train.tiny import stream

TRAIN = ("the first document says this\n" * 9, "größe €\n" * 7)
HELD = ("the first document says this too\n" * 5, "and more")


@pytest.fixture
def corpus(tmp_path):
    return Corpus(Tokenizer.bytes(), stream(tmp_path, *TRAIN), stream(tmp_path, *HELD))


def size(text):
    return len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_it_is_the_difference_that_the_held_out_text_makes(corpus, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    before, held = "".join(TRAIN), "".join(HELD)
    found = xz(corpus, most=10**6)
    assert found.before_nbytes == len(before.encode())
    assert found.alone == 8 * size(held) / len(held.encode())
    assert found.after == 8 * (size(before + held) - size(before)) / len(held.encode())
    assert found.after < found.alone


def test_a_limit_takes_the_end_of_the_training_text(corpus):
    before, held = "".join(TRAIN)[-20:], "".join(HELD)
    found = xz(corpus, most=len(before.encode()))
    assert found.before_nbytes == len(before.encode())
    assert found.after == 8 * (size(before + held) - size(before)) / len(held.encode())


def test_no_training_text_is_none(corpus):
    assert xz(corpus, most=0).before_nbytes == 0
