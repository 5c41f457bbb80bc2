"""Documents: nothing lost, nothing read twice; the order hangs on names, the held-out side on text alone."""

import bz2
import gzip
import io
import lzma
import os
import sys
import threading
from pathlib import Path

import pytest

from rebracket.data.sources import read_file
from rebracket.data.text import Document, hold_out, read

CHINESE = "今天天气很好，我们去公园散步。\n" * 200


def texts(documents):
    return [document.text for document in documents]


def names(documents):
    return [document.name for document in documents]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "books"
    for name, data in {
        "b.txt": b"second",
        "a.txt": b"first",
        "deep/c.md": b"third",
        "deep/same.txt": b"first",
        "empty.txt": b"",
        "blank.txt": b" \n\t",
        "picture.bin": b"\x89PNG\0\0",
        ".hidden": b"hidden",
        ".git/config": b"hidden too",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_a_folder_gives_its_visible_text_in_order_of_names_without_repeats(folder):
    documents = read([str(folder)])
    assert texts(documents) == ["first", "second", "third"]
    assert names(documents) == ["books/a.txt", "books/b.txt", "books/deep/c.md"]


def test_the_order_of_sources_does_not_matter(folder):
    paths = [str(folder / "b.txt"), str(folder / "a.txt"), str(folder / "deep")]
    assert read(paths) == read(paths[::-1])


def test_globs_go_deep(folder):
    assert texts(read([f"{folder}/**/*.md"])) == ["third"]
    assert texts(read([f"{folder}/?.txt"])) == ["first", "second"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grüße".encode())))
    assert read(["-"]) == (Document("-", "grüße"),)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("größe €".encode(), "größe €"),
        ("größe €".encode("utf-8-sig"), "größe €"),
        ("größe €".encode("utf-16"), "größe €"),
        ("größe €".encode("utf-32"), "größe €"),
        ("größe €".encode("utf-16-le"), "größe €"),
        ("größe €".encode("utf-16-be"), "größe €"),
        ("größe €".encode("utf-32-be"), "größe €"),
        (("今天天气很好，" * 20 + "\n").encode("utf-16-le"), "今天天气很好，" * 20 + "\n"),
        (("今天天气很好，" * 20 + "\n").encode("utf-16-be"), "今天天气很好，" * 20 + "\n"),
        (b"a\r\nb\rc", "a\r\nb\rc"),
    ],
)
def test_a_named_file_is_decoded_whatever_it_holds(tmp_path, data, text):
    (tmp_path / "x").write_bytes(data)
    assert texts(read([str(tmp_path / "x")])) == [text]


@pytest.mark.parametrize(
    ("data", "text", "said"),
    [
        (
            CHINESE.encode()[:5000],
            CHINESE.encode()[:5000].decode("utf-8", "replace"),
            "UTF-8 and were replaced: 1, first",
        ),
        ("größe".encode("latin-1"), "gr\ufffd\ufffde", "UTF-8 and were replaced: 2, first"),
        (b"\xff\xfe\x00", "\ufffd", "UTF-16 and were replaced: 1, first"),
        ("sent \ufffd already ".encode() + b"\xff", "sent \ufffd already \ufffd", "UTF-8 and were replaced: 1, first"),
    ],
    ids=["cut", "latin", "cut UTF-16", "replaced before"],
)
def test_damaged_characters_are_replaced_and_counted(tmp_path, data, text, said):
    (tmp_path / "x").write_bytes(data)
    lines = []
    assert texts(read([str(tmp_path / "x")], say=lines.append)) == [text]
    assert read_file(str(tmp_path / "x"), say=lines.append) == text
    assert lines == [f"places that are not {said} {tmp_path / 'x'}"] * 2


def test_without_a_listener_damage_is_a_warning(tmp_path):
    (tmp_path / "x").write_bytes(b"a\xff")
    with pytest.warns(UserWarning, match="not UTF-8 and were replaced: 1"):
        read([str(tmp_path / "x")])


NO_TEXT = {
    "a.zip": (b"PK\x03\x04\x14\0", "a zip archive; unpack it first"),
    "a.gz": (gzip.compress(b"text"), "compressed by gzip; unpack it first"),
    "a.bz2": (bz2.compress(b"text"), "compressed by bzip2; unpack it first"),
    "a.xz": (lzma.compress(b"text"), "compressed by xz; unpack it first"),
    "a.pdf": (b"%PDF-1.7 text", "a PDF; unpack it first"),
    "a.tar": (b"name\0\0\0\0 text text text", "binary; if it is text, name its encoding"),
    "a.bin": (bytes(range(256)) * 9, "binary; if it is text, name its encoding"),
    "a.txt": ("été à Évry\n".encode("latin-1") * 9, "not UTF-8; name its encoding, such as latin-1"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_is_no_text_is_refused_by_name_and_left_out_of_a_folder(tmp_path, name):
    data, said = NO_TEXT[name]
    (tmp_path / name).write_bytes(data)
    for reader in (read_file, lambda path: read([path])):
        with pytest.raises(ValueError, match=f"{name}: {said}"):
            reader(str(tmp_path / name))
    (tmp_path / "good").write_text("good")
    lines = []
    assert texts(read([str(tmp_path)], say=lines.append)) == ["good"]
    assert lines == [f"files left out that are {said.partition(';')[0]}: 1, first {tmp_path.name}/{name}"]


def test_an_encoding_can_be_named(tmp_path):
    (tmp_path / "x").write_bytes("été à Évry\n".encode("latin-1") * 9)
    assert read_file(str(tmp_path / "x"), "latin-1") == "été à Évry\n" * 9
    assert texts(read([str(tmp_path)], encoding="latin-1")) == ["été à Évry\n" * 9]
    (tmp_path / "marked").write_bytes("x".encode("utf-8-sig"))
    assert read_file(str(tmp_path / "marked"), "utf-8") == "x"
    for unknown in ("klingon", "zlib"):
        with pytest.raises(ValueError, match=f"encoding must be auto or one that Python knows.*'{unknown}'"):
            read_file(str(tmp_path / "x"), unknown)


def test_zeros_in_a_folder_are_binary(tmp_path):
    (tmp_path / "x").write_bytes(("plain words\n" * 20).encode("utf-16-le"))
    (tmp_path / "y").write_text("text")
    assert names(read([str(tmp_path)], say=[].append)) == [f"{tmp_path.name}/y"]
    assert texts(read([str(tmp_path / "x")])) == ["plain words\n" * 20]


def test_links_to_folders_are_followed_once_and_may_go_in_circles(tmp_path):
    for name in ("a", "b", "aside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(f"text of {name}")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    (tmp_path / "top").mkdir()
    for name in ("a", "b"):
        (tmp_path / "top" / name).symlink_to(tmp_path / name)
    assert names(read([str(tmp_path)])) == [f"{tmp_path.name}/{name}/x.txt" for name in ("a", "aside", "b")]
    assert texts(read([str(tmp_path / "top")])) == ["text of a", "text of b"]
    assert texts(read([f"{tmp_path}/top/**/*.txt"])) == ["text of a", "text of b"]


def test_what_cannot_be_read_in_a_folder_is_counted_and_by_name_an_error(tmp_path, monkeypatch):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    for name in ("locked.txt", "locked too.txt"):
        (tmp_path / name).write_text("locked")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").mkdir()
    read_bytes, scandir = Path.read_bytes, os.scandir

    def refuse(path):
        if "locked" in path.name:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    def close(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(os, "scandir", close)
    for source in (tmp_path, tmp_path / "**"):
        lines = []
        assert texts(read([str(source)], say=lines.append)) == ["good"]
        assert [line.partition(", first")[0] for line in sorted(lines)] == [
            "files left out that are pipes or devices: 1",
            "files left out that cannot be read: 4",
            "folders left out that cannot be read: 1",
        ]
    with pytest.raises(PermissionError, match=r"locked\.txt"):
        read([str(tmp_path / "locked.txt")])


def test_a_pipe_by_name_is_read_and_a_device_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for reader in (read_file, lambda path: read([path])[0].text):
        writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("through a pipe",))
        writer.start()
        assert reader(str(tmp_path / "pipe")) == "through a pipe"
        writer.join()
    with pytest.raises(ValueError, match="/dev/zero: must be a file or a pipe, is a device"):
        read(["/dev/zero"])
    with pytest.raises(ValueError, match="must be a file or a pipe, is a folder"):
        read_file(str(tmp_path))


def test_standard_input_that_is_closed_is_said_to_be(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="-: standard input is closed"):
        read(["-"])


def test_a_separator_divides_a_file_into_documents(tmp_path):
    (tmp_path / "x").write_text("one<|>two<|>\n<|>three")
    documents = read([str(tmp_path / "x")], separator="<|>")
    assert texts(documents) == ["one", "two", "three"]
    assert len(set(names(documents))) == 3


def test_parts_keep_their_order_beyond_ten(tmp_path):
    (tmp_path / "x").write_text("|".join(f"part {number}" for number in range(12)))
    assert texts(read([str(tmp_path / "x")], separator="|")) == [f"part {number}" for number in range(12)]


def test_the_standard_library_is_python_without_tests_and_without_installed_packages():
    documents = read(["stdlib"])
    assert all(name.endswith(".py") for name in names(documents))
    assert {"stdlib/json/decoder.py", "stdlib/os.py"} <= set(names(documents))
    unwanted = {"test", "tests", "site-packages", "dist-packages"}
    assert all(unwanted.isdisjoint(name.split("/")) for name in names(documents))


def test_missing_and_empty_sources_are_named(tmp_path):
    (tmp_path / "empty").write_text("")
    with pytest.raises(FileNotFoundError, match="no text at no/such/file"):
        read(["no/such/file"])
    with pytest.raises(FileNotFoundError, match=r"no text at .*\*\.nothing"):
        read([f"{tmp_path}/*.nothing"])
    with pytest.raises(ValueError, match="must not be empty, got no text in .*/empty"):
        read([str(tmp_path / "empty")])
    with pytest.raises(ValueError, match="at least one source"):
        read([])


MANY = tuple(Document(f"{number:04d}", f"text of number {number}") for number in range(1000))


def test_both_sides_together_are_all_documents_and_the_share_is_about_right():
    train, held = hold_out(MANY, 0.1)
    assert sorted(names(train + held)) == names(MANY)
    assert 70 < len(held) < 130


def test_a_document_keeps_its_side_whatever_its_name_and_its_company():
    _, held = hold_out(MANY, 0.1)
    renamed = [Document(f"other {document.name}", document.text) for document in MANY[:500]]
    _, fewer = hold_out(renamed, 0.1)
    assert texts(fewer) == [text for text in texts(held) if text in texts(MANY[:500])]


def test_a_larger_share_only_adds():
    assert set(hold_out(MANY, 0.05)[1]) < set(hold_out(MANY, 0.2)[1])


def test_the_end_of_a_lonely_document_is_held_out_from_a_line_start():
    text = "".join(f"line {number}\n" for number in range(100))
    (train,), (held,) = hold_out([Document("novel", text)], 0.1)
    assert train.text + held.text == text
    assert train.text.endswith("\n")
    assert 0.08 * len(text) < len(held.text) < 0.13 * len(text)


def test_a_text_without_lines_is_cut_where_it_must_be():
    (train,), (held,) = hold_out([Document("row", "x" * 10_000)], 0.1)
    assert (len(train.text), len(held.text)) == (9000, 1000)


def test_no_more_than_half_is_ever_held_out():
    for number in range(200):
        documents = (Document("whale", f"{number} " * 999), Document("minnow", "small"))
        train, held = hold_out(documents, 0.2)
        assert sum(d.nbytes for d in held) <= sum(d.nbytes for d in train)


@pytest.mark.parametrize("fraction", [0, -0.1, 0.51, 1])
def test_a_share_out_of_range_is_refused(fraction):
    with pytest.raises(ValueError, match=r"held_out must lie in \(0, 0.5\]"):
        hold_out(MANY, fraction)


def test_a_text_too_short_to_cut_is_refused():
    with pytest.raises(ValueError, match="long enough to hold out its end, got 1 bytes in x"):
        hold_out([Document("x", "x")], 0.1)
