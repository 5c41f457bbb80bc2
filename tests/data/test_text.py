"""Documents: nothing lost, nothing read twice; the order hangs on names, the held-out side on text alone."""

import io
import sys

import pytest

from rebracket.data.text import Document, hold_out, read


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
        ("größe".encode("latin-1"), "größe"),
        (b"a\r\nb\0c", "a\r\nb\0c"),
        (b"\xff\xfe\x00", "\ufffd"),
    ],
)
def test_a_named_file_is_decoded_whatever_it_holds(tmp_path, data, text):
    (tmp_path / "x").write_bytes(data)
    assert texts(read([str(tmp_path / "x")])) == [text]


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
