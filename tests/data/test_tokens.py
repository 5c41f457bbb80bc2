"""The token cache: the tokens are those of the text, even if its files were damaged or changed."""

import os
from pathlib import Path

import numpy as np
import pytest

from rebracket.data import tokens as module
from rebracket.data.text import Document
from rebracket.data.tokens import cache_folder, token_stream
from rebracket.lm.tokenizer import Tokenizer

DOCUMENTS = (Document("a", "größe"), Document("b", "x"), Document("c", "two words\n"))
PLAIN = Tokenizer.bytes()


def row(documents, tokenizer):
    return [number for one in documents for number in (tokenizer.document, *tokenizer.encode(one.text))]


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*"))


def test_without_a_home_the_variable_to_set_is_named(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("REBRACKET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ValueError, match="no home folder for the cache; set REBRACKET_CACHE to a folder"):
        cache_folder()


def test_a_cache_that_cannot_be_written_names_the_variable_to_set(tmp_path):
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OSError, match="set REBRACKET_CACHE to a folder that can be written") as caught:
            token_stream(DOCUMENTS, PLAIN, cache)
        assert caught.value.filename == str(cache)


def test_a_stream_is_each_document_behind_its_mark(tmp_path):
    stream = token_stream(DOCUMENTS, PLAIN, tmp_path)
    assert stream.tokens.tolist() == row(DOCUMENTS, PLAIN)
    assert (stream.documents, stream.nbytes, stream.mark) == (3, 7 + 1 + 10, 256)
    assert int(PLAIN.byte_lengths()[stream.tokens.astype(np.int64)].sum()) == stream.nbytes


def test_blocks_of_any_size_give_the_same(tmp_path, monkeypatch):
    whole = token_stream(DOCUMENTS, PLAIN, tmp_path / "whole")
    monkeypatch.setattr(module, "BLOCK", 3)
    pieces = token_stream(DOCUMENTS, PLAIN, tmp_path / "pieces")
    assert pieces.tokens.tolist() == whole.tokens.tolist()


def test_it_is_memory_mapped_and_made_once(tmp_path, monkeypatch):
    first = token_stream(DOCUMENTS, PLAIN, tmp_path)
    monkeypatch.setattr(module, "build", None)
    second = token_stream(DOCUMENTS, PLAIN, tmp_path)
    assert isinstance(second.tokens, np.memmap)
    assert second.tokens.dtype == np.uint16
    assert second.tokens.tolist() == first.tokens.tolist()
    assert (second.documents, second.nbytes, second.digest) == (first.documents, first.nbytes, first.digest)


def test_another_text_order_or_tokenizer_is_another_file(tmp_path):
    other = Tokenizer.train(["two words " * 9], vocab_size=262)
    streams = [
        token_stream(DOCUMENTS, PLAIN, tmp_path),
        token_stream(DOCUMENTS[::-1], PLAIN, tmp_path),
        token_stream(DOCUMENTS[:2], PLAIN, tmp_path),
        token_stream(DOCUMENTS, other, tmp_path),
    ]
    assert len({stream.digest for stream in streams}) == 4
    assert len(files(tmp_path)) == 8
    assert streams[3].tokens.tolist() == row(DOCUMENTS, other)


def test_a_name_is_no_text(tmp_path):
    token_stream([Document("a", "text")], PLAIN, tmp_path)
    token_stream([Document("b", "text")], PLAIN, tmp_path)
    assert len(files(tmp_path)) == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("ending", [".npy", ".json"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, id="gone"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-1]), id="cut"),
        pytest.param(flip, id="one bit"),
        pytest.param(lambda path: path.write_bytes(b"{}"), id="foreign"),
    ],
)
def test_damage_is_repaired(tmp_path, ending, damage):
    token_stream(DOCUMENTS, PLAIN, tmp_path)
    (path,) = tmp_path.glob(f"*{ending}")
    damage(path)
    stream = token_stream(DOCUMENTS, PLAIN, tmp_path)
    assert stream.tokens.tolist() == row(DOCUMENTS, PLAIN)
    assert (stream.documents, stream.nbytes) == (3, 18)


def test_nothing_is_left_beside(tmp_path):
    token_stream(DOCUMENTS, PLAIN, tmp_path)
    assert sorted(path.suffix for path in files(tmp_path)) == [".json", ".npy"]
    assert not list(tmp_path.glob(".*"))


def test_more_ids_than_16_bits_hold_are_stored_in_32(monkeypatch):
    monkeypatch.setattr(Tokenizer, "vocab_size", property(lambda self: 1 << 17))
    (first, *_) = module.encoded(DOCUMENTS, PLAIN)
    assert first.dtype == np.uint32


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("REBRACKET_CACHE", "/mine")
    assert cache_folder() == Path("/mine")
    monkeypatch.delenv("REBRACKET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/rebracket")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/home/me")
    assert cache_folder() == Path("/home/me/.cache/rebracket")
