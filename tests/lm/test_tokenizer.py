"""The tokenizer loses nothing: any text and any bytes come back, every byte counted once, the mark never made."""

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebracket.lm import tokenizer as module
from rebracket.lm.tokenizer import MARK, Tokenizer

TEXT = "def größer(a, b):\n    return a > b  # größer as größer does\n\n\nprint(größer(1, 2), '€😀')\n" * 20
PLAIN = Tokenizer.bytes()
TRAINED = Tokenizer.train([TEXT, "the quick brown fox " * 30], vocab_size=300)
PROPERTY = settings(deadline=None, max_examples=50)  # the first call imports torch
BOTH = pytest.mark.parametrize("tokenizer", [PLAIN, TRAINED], ids=["bytes", "trained"])
AWKWARD = ["", " ", "\0", "\r\n", MARK, f"a{MARK}b", "\ufeffx", "e\u0301", "\U0010ffff", "a" * 5000, "  \t\n  x"]


@BOTH
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_comes_back_without_a_mark(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.document not in ids


@PROPERTY
@given(text=st.text())
def test_any_text_comes_back(text: str):
    assert TRAINED.decode(TRAINED.encode(text)) == text
    assert PLAIN.decode(PLAIN.encode(text)) == text


@PROPERTY
@given(data=st.binary())
def test_any_bytes_come_back(data: bytes):
    assert TRAINED.decode_bytes(TRAINED.encode_bytes(data)) == data
    assert PLAIN.encode_bytes(data) == list(data)


@PROPERTY
@given(data=st.binary())
def test_byte_lengths_count_every_byte_once(data: bytes):
    ids = [TRAINED.document, *TRAINED.encode_bytes(data)]
    assert int(TRAINED.byte_lengths()[ids].sum()) == len(data)


def test_merges_shorten_and_the_first_256_ids_are_the_bytes():
    ids = TRAINED.encode(TEXT)
    assert len(ids) < 0.5 * len(TEXT.encode())
    assert all(TRAINED.decode_bytes([byte]) == bytes([byte]) for byte in range(256))
    assert TRAINED.vocab_size == 300
    assert TRAINED.document == 299


def test_encoding_together_equals_encoding_alone():
    texts = [TEXT, "", "x", MARK]
    assert TRAINED.encode_all(texts) == [TRAINED.encode(text) for text in texts]


def test_training_is_deterministic_whatever_the_order_of_documents():
    texts = [f"{random.Random(n).randbytes(40).hex()} {TEXT[n:]}" for n in range(20)]
    first = Tokenizer.train(texts, vocab_size=400)
    assert Tokenizer.train(texts[::-1], vocab_size=400) == first
    assert Tokenizer.train(texts, vocab_size=401) != first
    assert Tokenizer.train(texts, vocab_size=401).digest != first.digest


@pytest.mark.parametrize("alphabet", ["a", " ", "ACGT", "今天气很好我们去公园散步的一是不了"])
def test_learning_from_text_without_blanks_takes_time_in_proportion_to_its_length(alphabet: str):
    draw = random.Random(0)

    def seconds(length: int) -> float:
        text = "".join(draw.choices(alphabet, k=length))
        begun = time.process_time()
        Tokenizer.train([text], vocab_size=1000)
        return time.process_time() - begun

    shorter = min(seconds(10_000) for _ in range(3))
    assert seconds(80_000) < 24 * max(shorter, 0.01)


def test_ordinary_words_are_learned_from_whole():
    words = [f"{'x' * length}{length}" for length in (1, 30, 100)]
    text = " ".join(word for word in words for _ in range(3))
    found = Tokenizer.train([text], vocab_size=2000)
    assert len(found.encode(f" {'x' * 100}")) == 1


def test_merges_that_make_the_same_text_share_an_id():
    tokenizer = Tokenizer([("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")])
    assert tokenizer.vocab_size == 256 + 3 + 1
    assert tokenizer.encode("abc") == [257]
    assert tokenizer.decode([256, 257, 258, 259]) == "ababcbc"


def test_little_text_gives_fewer_merges():
    assert Tokenizer.train(["abab"], vocab_size=1000).vocab_size < 265
    assert Tokenizer.train([], vocab_size=1000) == PLAIN


@BOTH
def test_saved_and_loaded_is_equal(tokenizer: Tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    assert loaded.digest == tokenizer.digest
    assert loaded.encode(TEXT) == tokenizer.encode(TEXT)


@BOTH
def test_the_saved_file_means_the_same_to_the_library_that_defines_it(tokenizer: Tokenizer, tmp_path):
    from tokenizers import Tokenizer as Engine

    tokenizer.save(tmp_path / "tokenizer.json")
    engine = Engine.from_file(str(tmp_path / "tokenizer.json"))
    assert engine.encode(TEXT).ids == tokenizer.encode(TEXT)
    assert engine.get_vocab_size() == tokenizer.vocab_size
    assert engine.token_to_id(MARK) == tokenizer.document
    assert engine.decode(tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("", "damaged"),
        ("{}", "damaged"),
        ('{"model": {"vocab": {}, "merges": []}}', "no byte-level tokenizer"),
        ('{"model": {"vocab": {}, "merges": ["a b c"]}}', "not pairs"),
        ('{"model": {"vocab": {}, "merges": [["nothing", "known"]]}}', "merges must join"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path, contents: str, said: str):
    path = tmp_path / "tokenizer.json"
    path.write_text(contents)
    with pytest.raises(ValueError, match=said):
        Tokenizer.load(path)


def test_a_file_with_one_id_moved_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    TRAINED.save(path)
    contents = json.loads(path.read_text())
    contents["model"]["vocab"]["a"], contents["model"]["vocab"]["b"] = 98, 97
    path.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match="no byte-level tokenizer"):
        Tokenizer.load(path)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="vocab_size must be >= 257"):
        Tokenizer.train([TEXT], vocab_size=256)
    with pytest.raises(ValueError, match=r"ids must be in \[0, 257\), got 257"):
        PLAIN.decode([257])
    with pytest.raises(ValueError, match="ids must be in"):
        PLAIN.decode([-1])
    with pytest.raises(ValueError, match="lone surrogate at position 1"):
        TRAINED.encode("a\ud800")


def test_the_byte_alphabet_is_one_printable_character_per_byte():
    symbols = module.byte_symbols()
    assert len(set(symbols)) == 256
    assert all(symbol.isprintable() and not symbol.isspace() for symbol in symbols)
